"""One set of boxes in every form that people's tools write: each is read as COCO's list of results is."""

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import GroundTruth, read_ground_truth
from coordexp.detection.result_files import read_results
from coordexp.errors import DataError

NAMES = {3: "Cat", 7: "red dog"}
CORNERS = ("xmin", "ymin", "xmax", "ymax")
IMAGES = {11: "val/a_1.JPG", 12: "val/0007.jpg", 14: "val/Café 2.png"}
SIZE = (200, 100)
# image, category, x, y, w, h, score
ROWS = [
    (11, 3, 10, 20, 30, 40, 0.9),
    (11, 7, 50, 10, 20, 20, 0.25),
    (12, 3, 0, 0, 60, 60, 0.5),
    (14, 7, 5, 5, 50, 90, 0.75),
]


@pytest.fixture
def truth(tmp_path: Path) -> GroundTruth:
    document = {
        "images": [{"id": key, "file_name": name, "width": SIZE[0], "height": SIZE[1]} for key, name in IMAGES.items()],
        "categories": [{"id": key, "name": name} for key, name in NAMES.items()],
        "annotations": [
            {"id": n, "image_id": i, "category_id": c, "bbox": box} for n, (i, c, *box, _) in enumerate(ROWS, start=1)
        ],
    }
    (tmp_path / "gt.json").write_text(json.dumps(document))
    return read_ground_truth(tmp_path / "gt.json")


def coco(image=lambda i: {"image_id": i}, category=lambda c: {"category_id": c}) -> list[dict]:
    return [{**image(i), **category(c), "bbox": box, "score": score} for i, c, *box, score in ROWS]


def by_image(make: Callable[[list], object]) -> dict[int, object]:
    return {i: make([row[1:] for row in ROWS if row[0] == i]) for i in IMAGES}


def corners(row) -> list[float]:
    _, x, y, w, h, _ = row
    return [x, y, x + w, y + h]


def columns(rows, box="boxes", labels=lambda c: c) -> dict:
    return {box: [corners(r) for r in rows], "scores": [r[-1] for r in rows], "labels": [labels(r[0]) for r in rows]}


def megadetector() -> dict:
    def entry(row) -> dict:
        c, x, y, w, h, score = row
        return {"category": str(c - 2), "conf": score, "bbox": [x / SIZE[0], y / SIZE[1], w / SIZE[0], h / SIZE[1]]}

    images = [{"file": IMAGES[i], "detections": [entry(r) for r in rows]} for i, rows in by_image(list).items()]
    failed = {"file": IMAGES[11], "failure": "cannot open", "detections": None}
    kinds = {str(c - 2): name for c, name in NAMES.items()}
    return {"info": {}, "detection_categories": kinds, "images": [*images, failed]}


def whole_coco(new=lambda i: i - 10, attributes=False) -> dict:
    """With ids of its own for images and categories, as CVAT renumbers them."""
    kinds = {3: 1, 7: 2}
    rows = coco(lambda i: {"image_id": new(i)}, lambda c: {"category_id": kinds[c]})
    if attributes:
        rows = [{**row, "attributes": {"score": str(row.pop("score"))}} for row in rows]
    return {
        "images": [{"id": new(i), "file_name": Path(name).name} for i, name in IMAGES.items()],
        "categories": [{"id": kinds[c], "name": name.lower()} for c, name in NAMES.items()],
        "annotations": rows,
    }


def stem(i: int) -> str:
    return Path(IMAGES[i]).stem


FORMS: dict[str, Callable[[], object]] = {
    "coco": coco,
    "ultralytics": lambda: coco(lambda i: {"image_id": int(stem(i)) if stem(i).isdigit() else stem(i)}),
    "ultralytics, names beside": lambda: coco(lambda i: {"image_id": stem(i), "file_name": Path(IMAGES[i]).name}),
    "ids as text": lambda: coco(lambda i: {"image_id": str(i)}, lambda c: {"category_id": str(c)}),
    "windows": lambda: coco(lambda i: {"file_name": "C:\\data\\" + IMAGES[i].replace("/", "\\").upper()}),
    "quoted": lambda: coco(lambda i: {"image": f"https://h/{IMAGES[i]}".replace(" ", "%20").replace("é", "%C3%A9")}),
    "decomposed accents": lambda: coco(lambda i: {"file_name": IMAGES[i].replace("é", "e\u0301")}),
    "category names": lambda: coco(category=lambda c: {"category_name": NAMES[c].upper()}),
    "labels": lambda: coco(category=lambda c: {"label": NAMES[c]}),
    "whole coco": whole_coco,
    "whole coco, other ids that are also known": lambda: whole_coco(lambda i: {11: 12, 12: 11, 14: 14}[i]),
    "cvat": lambda: whole_coco(attributes=True),
    "megadetector": megadetector,
    "torchmetrics, in order": lambda: [columns(rows) for rows in by_image(list).values()],
    "torchmetrics, with ids": lambda: [{"image_id": i, **columns(rows)} for i, rows in by_image(list).items()],
    "torchvision": lambda: {str(i): columns(rows) for i, rows in by_image(list).items()},
    "mmdetection": lambda: [
        {"img_path": IMAGES[i], "pred_instances": columns(rows, "bboxes", lambda c: sorted(NAMES).index(c))}
        for i, rows in by_image(list).items()
    ],
    "detectron2": lambda: [{"image_id": i, "instances": [r for r in coco() if r["image_id"] == i]} for i in IMAGES],
    "hugging face": lambda: {
        IMAGES[i]: [
            {"label": NAMES[r[0]], "score": r[-1], "box": dict(zip(CORNERS, corners(r), strict=True))}
            for r in rows
        ]
        for i, rows in by_image(list).items()
    },
    "ours": lambda: [
        {"picture": IMAGES[i], "objects": [{"desc": NAMES[c], "score": s, "expected_px": corners((c, *box, s))}
                                           for c, *box, s in rows]}
        for i, rows in by_image(list).items()
    ],
}  # fmt: skip


def check(path: Path, truth: GroundTruth) -> None:
    found = read_detections(path, truth)
    rows = sorted(zip(found.image_ids, found.category_ids, *found.boxes_px_xywh.T, found.scores, strict=True))
    assert np.array(rows) == pytest.approx(np.array(sorted(ROWS)), abs=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_detections(form: str, truth: GroundTruth, tmp_path: Path) -> None:
    path = tmp_path / "dt.json"
    path.write_text(json.dumps(FORMS[form]()))
    check(path, truth)
    remarks = read_results(path, truth).remarks
    is_by_id = form in (
        "coco",
        "ids as text",
        "category names",
        "labels",
        "torchmetrics, with ids",
        "torchvision",
        "detectron2",
    )
    assert bool(remarks) != is_by_id, remarks
    assert read_results(path, truth).is_plain == (form == "coco")


def test_packings(truth: GroundTruth, tmp_path: Path) -> None:
    text = json.dumps(coco())
    (tmp_path / "dt.json.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "bom.json").write_text(text, encoding="utf-8-sig")
    (tmp_path / "powershell.json").write_text(text, encoding="utf-16")
    (tmp_path / "dt.jsonl").write_text("\n".join(map(json.dumps, coco())) + "\n")
    with zipfile.ZipFile(tmp_path / "dt.zip", "w") as archive:
        archive.writestr("detections_val_results.json", text)
        archive.writestr("__MACOSX/._x.json", "junk")
    (tmp_path / "preds").mkdir()
    (tmp_path / "labels").mkdir()
    for i, rows in by_image(list).items():
        (tmp_path / "preds" / f"{stem(i)}.json").write_text(json.dumps(columns(rows, "bboxes", sorted(NAMES).index)))
        lines = [
            f"{sorted(NAMES).index(c)} {(x + w / 2) / SIZE[0]} {(y + h / 2) / SIZE[1]} {w / SIZE[0]} {h / SIZE[1]} {s}"
            for c, x, y, w, h, s in rows
        ]
        (tmp_path / "labels" / f"{stem(i)}.txt").write_text("\n".join(lines))
    for name in ("dt.json.gz", "bom.json", "powershell.json", "dt.jsonl", "dt.zip", "preds", "labels"):
        check(tmp_path / name, truth)


def test_numbers_of_files_are_told_from_ids_by_what_the_boxes_fit(tmp_path: Path) -> None:
    """Pictures 1.jpg to 12.jpg, ids in the order of the alphabet: Ultralytics writes the stem, which is an id too."""
    names = sorted(str(number) for number in range(1, 13))
    boxes = {name: [10.0 * int(name), 5, 8, 8] for name in names}
    document = {
        "images": [{"id": n, "file_name": f"{name}.jpg"} for n, name in enumerate(names, start=1)],
        "categories": [{"id": 1, "name": "a"}],
        "annotations": [
            {"id": n, "image_id": n, "category_id": 1, "bbox": boxes[name]} for n, name in enumerate(names, start=1)
        ],
    }
    (tmp_path / "gt.json").write_text(json.dumps(document))
    truth = read_ground_truth(tmp_path / "gt.json")
    rows = [{"image_id": int(name), "category_id": 1, "bbox": box, "score": 0.5} for name, box in boxes.items()]
    (tmp_path / "stems.json").write_text(json.dumps(rows))
    results = read_results(tmp_path / "stems.json", truth)
    assert "numbers that files are called" in results.remarks[0]
    assert [names[i - 1] for i in results.image_ids] == list(boxes)
    ids = [{**row, "image_id": names.index(str(row["image_id"])) + 1} for row in rows]
    (tmp_path / "ids.json").write_text(json.dumps(ids))
    assert read_results(tmp_path / "ids.json", truth).remarks == ()
    (tmp_path / "one.json").write_text(json.dumps([{**rows[0], "image_id": 0}]))  # one box is no evidence
    with pytest.raises(DataError, match="image_id 0 is not among the 12"):
        read_results(tmp_path / "one.json", truth)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (coco(lambda i: {"image_id": "c_9"}), r"detection\[0\]: image_id 'c_9' is not among the 3 of"),
        (coco(lambda i: {"file_name": "d.jpg"}), r"detection\[0\]: image 'd.jpg' is not among the 3 of"),
        (coco(lambda i: {}), r"detection\[0\]: image_id is missing"),
        (coco(category=lambda c: {"label": "cow"}), "no category of the annotation file is called 'cow'; it has Cat"),
        (coco(category=lambda c: {"category_id": c if c == 3 else "dog"}), "some categories are ids and others names"),
        ([{"image_id": 11, "category_id": 3, "segmentation": [], "score": 1}], r"\[0\]: bbox is missing among"),
        ([{"image_id": 11, "boxes": [[1, 2, 3, 4]], "labels": []}], "boxes, labels and scores are no lists of one"),
        ({"images": [], "annotations": [3]}, r"annotations\[0\]: the entry is a number"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(value: object, message: str, truth: GroundTruth, tmp_path: Path) -> None:
    (tmp_path / "dt.json").write_text(json.dumps(value))
    with pytest.raises(DataError, match=message):
        read_detections(tmp_path / "dt.json", truth)


def test_the_cases(shared_data: Path) -> None:
    cases = shared_data / "cases" / "R"
    truth = read_ground_truth(cases / "val.json")
    named, whole = (read_detections(cases / f"{name}.json", truth) for name in ("image_id_stem", "wrapped_coco"))
    np.testing.assert_array_equal(named.by_place().boxes_px_xywh, whole.by_place().boxes_px_xywh)
