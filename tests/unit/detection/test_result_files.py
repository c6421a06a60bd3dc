"""One set of boxes in every form that people's tools write: each is read as COCO's list of results is."""

import gzip
import json
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coordexp.detection import evaluate_detections
from coordexp.detection.detections import detections_of, read_detections
from coordexp.detection.forms.frames import Frame
from coordexp.detection.forms.results import read_results
from coordexp.detection.ground_truth import GroundTruth, read_ground_truth
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
    "other names": lambda: [
        {"imageId": i, "class_name": NAMES[c], "bounding_box": box, "confidence_score": s} for i, c, *box, s in ROWS
    ],
    "plural names": lambda: [
        {"image_id": i, "labels": c, "bboxes": box, "scores": s} for i, c, *box, s in ROWS
    ],
    "numbers by name": lambda: [
        {"image_id": i, "category_id": c, "box": dict(zip(("left", "top", "width", "height"), box, strict=True)),
         "pred_score": s}
        for i, c, *box, s in ROWS
    ],
    "corners flat": lambda: [
        {"image_id": i, "class": NAMES[c], "class_id": 77, "prob": s,
         **dict(zip(CORNERS, corners((c, *box, s)), strict=True))}
        for i, c, *box, s in ROWS
    ],
    "confidence in a list that is COCO's otherwise": lambda: [
        {"confidence": row.pop("score"), **row} for row in coco()
    ],
    "bboxes with ids": lambda: [
        {"image_id": i, **columns(rows, "bboxes")} for i, rows in by_image(list).items()
    ],
    "wrapped": lambda: {"model": "x", "output": coco()},
    "boxes as objects": lambda: [
        {"file_name": IMAGES[i], "boxes": [{"label": NAMES[r[0]], "score": r[-1],
                                            **dict(zip(("x1", "y1", "x2", "y2"), corners(r), strict=True))}
                                           for r in rows]}
        for i, rows in by_image(list).items()
    ],
    "columns with sizes": lambda: [
        {"image_id": i, "boxes": [r[1:5] for r in rows], "confidences": [r[-1] for r in rows],
         "class_names": [NAMES[r[0]] for r in rows]}
        for i, rows in by_image(list).items()
    ],
    "empty lists beside": lambda: [{"image_id": 12, "bbox": [], "score": None}, *coco(),
                                   {"image_id": 14, "detections": []},
                                   {"image_id": 11, "boxes": [], "labels": [], "scores": []}],
    "bbox_2d": lambda: [
        {"image_id": i, "label": NAMES[c], "score": s,
         "bbox_2d": [1000 * v / side for v, side in zip(corners((c, *box, s)), SIZE * 2, strict=True)]}
        for i, c, *box, s in ROWS
    ],
    "gemini": lambda: [
        {"image_id": i, "label": NAMES[c], "score": s,
         "box_2d": [1000 * corners((c, *box, s))[n] / SIZE[n % 2] for n in (1, 0, 3, 2)]}
        for i, c, *box, s in ROWS
    ],
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
        "other names",
        "plural names",
        "numbers by name",
        "corners flat",
        "confidence in a list that is COCO's otherwise",
        "empty lists beside",
        "wrapped",
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


def write_lines(folder: Path, lines: dict[str, list[str]]) -> Path:
    folder.mkdir()
    for name, texts in lines.items():
        (folder / name).write_text("\n".join(texts))
    return folder


@pytest.mark.parametrize("label", [lambda c: NAMES[c], str], ids=["names", "ids"])
def test_lines_of_class_confidence_and_corners(label, truth: GroundTruth, tmp_path: Path) -> None:
    lines = {
        f"{stem(i)}.txt": [" ".join(map(str, (label(row[0]), row[-1], *corners(row)))) for row in rows]
        for i, rows in by_image(list).items()
    }
    folder = write_lines(tmp_path / "lines", {**lines, "nothing_here.txt": []})
    check(folder, truth)
    (of_columns, of_names) = read_results(folder, truth).remarks
    for column in ("class", "confidence", "left", "top", "right", "bottom"):
        assert column in of_columns
    assert "3 of 3" in of_names


@pytest.mark.parametrize("name", ["comp4_det_val_{}.txt", "comp4_5a3f_det_test_{}.txt", "Task2_{}.txt"])
def test_a_file_a_category_as_the_devkit_of_voc_writes_it(name: str, truth: GroundTruth, tmp_path: Path) -> None:
    lines: dict[str, list[str]] = {name.format(category): [] for category in NAMES.values()}
    for i, c, *rest in ROWS:
        if " " not in stem(i):  # images are one word there
            lines[name.format(NAMES[c])].append(" ".join(map(str, (stem(i), rest[-1], *corners((c, *rest))))))
    found = read_detections(write_lines(tmp_path / "voc", lines), truth)
    rows = sorted(zip(found.image_ids, found.category_ids, *found.boxes_px_xywh.T, found.scores, strict=True))
    assert rows == sorted(row for row in ROWS if " " not in stem(row[0]))


@pytest.mark.parametrize(
    ("lines", "facts"),
    [
        ({"a_1.txt": ["Cat 10 20 30 40"]}, ["a_1.txt:1:", "Cat 10 20 30 40"]),
        ({"a_1.txt": ["Cat 0.5 10 20 30 40", "Cat ten 20 30 40"]}, ["a_1.txt:2:", "Cat ten 20 30 40", "confidence"]),
        ({"a_1.txt": ["Cat 51 10 20 30 40"]}, ["a_1.txt:1:", "Cat 51 10 20 30 40", "confidence"]),
        (
            {"a_1.txt": ["```json", '[{"bbox_2d": [1, 2, 3, 4]}]', "```"]},
            ["a_1.txt:1:", "coordexp evaluate", "a_1.jpg"],
        ),
        ({"comp4_det_val_Cat.txt": ["a_1 0.5 1 2 3"]}, ["Cat.txt:1:", "a_1 0.5 1 2 3", "image"]),
        ({"a_1.txt": ["0 .1 .1 .2 .2 .9"], "metrics.json": ["{}"]}, ["1 .json", "1 .txt", "metrics.json", "a_1.txt"]),
        ({"a_1.txt": ["0 .1 .1 .2 .2 .9"], "more.csv": ["a,b"]}, ["1 file", "more.csv"]),
        (
            {"a_1.txt": ["2 .1 .1 .2 .2 .9"], "classes.txt": ["Cat", "red dog"]},
            ["a_1.txt:1:", "class 2", "classes.txt"],
        ),
    ],
)
def test_a_line_that_is_something_else_is_named(
    lines: dict, facts: list[str], truth: GroundTruth, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as refusal:
        read_results(write_lines(tmp_path / "lines", lines), truth)
    assert [fact for fact in facts if fact not in str(refusal.value)] == []


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
    (remark,) = results.remarks
    assert "12 image ids" in remark
    assert [names[i - 1] for i in results.image_ids] == list(boxes)
    ids = [{**row, "image_id": names.index(str(row["image_id"])) + 1} for row in rows]
    (tmp_path / "ids.json").write_text(json.dumps(ids))
    assert read_results(tmp_path / "ids.json", truth).remarks == ()
    (tmp_path / "one.json").write_text(json.dumps([{**rows[0], "image_id": 0}]))  # one box is no evidence
    with pytest.raises(DataError, match=r"detection\[0\]: image_id 0 .*\b12\b"):
        read_results(tmp_path / "one.json", truth)


@pytest.mark.parametrize(
    ("value", "facts"),
    [
        (coco(lambda i: {"image_id": "c_9"}), r"detection\[0\]: image_id 'c_9' .*\b3\b"),
        (coco(lambda i: {"file_name": "d.jpg"}), r"detection\[0\]: image 'd.jpg' .*\b3\b"),
        (coco(lambda i: {}), r"detection\[0\]: image_id\b"),
        (coco(category=lambda c: {"label": "cow"}), r"detection\[0\]: .*'cow'.*Cat, red dog"),
        (coco(category=lambda c: {"category_id": c if c == 3 else "dog"}), "categories .*'dog'"),
        ([{"image_id": 11, "category_id": 3, "segmentation": [], "score": 1}], r"detection\[0\]: bbox .*segmentation"),
        ([{"image_id": 11, "boxes": [[1, 2, 3, 4]], "labels": []}], r"detection\[0\]: boxes, labels and scores"),
        ({"images": [], "annotations": [3]}, r"annotations\[0\]: .*number"),
        ([*coco(), {"image_id": 12, "quad": [1, 2, 3, 4]}, {"image_id": 12}],
         r"2 of 6 .*detection\[4\]: bbox .*image_id, quad"),
        ([*coco(), {"image_id": 12, "found": coco()}], r"1 of 5 .*detection\[4\]: bbox .*image_id, found"),
        ([*coco(), {"image_id": 12, "detections": None}], r"1 of 5 .*detection\[4\]: detections .*null.*\[\]"),
        ([*coco(), {"image_id": 12, "category_id": 3, "bbox": None}], r"1 of 5 .*detection\[4\]: bbox .*null"),
        ({"annotations": [], "predictions": coco(), "objects": coco()}, "objects and predictions"),
        ([{**row, "bbox_2d": row["bbox"], "bbox": None} if row["image_id"] == 14 else row for row in coco()],
         r"detection\[3\]: bbox_2d .*norm1000:xyxy.* bbox .*px:xywh"),
        ([{"image_id": 11, "class": "Cat", "confidence": 0.5, "x": 25, "y": 40, "w": 30, "h": 40}], "Roboflow"),
        ({"predictions": [{"x": 25, "y": 40, "width": 30, "height": 40, "class": "Cat", "confidence": 0.5}],
          "image": {"width": 200, "height": 100}}, "Roboflow"),
        ([{"image_id": 11, "objects": [{"desc": "Cat", "bins": [1, 2, 3, 4], "expected": [0, 0, 1, 1]}]}],
         "detections.expected.json"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(value: object, facts: str, truth: GroundTruth, tmp_path: Path) -> None:
    (tmp_path / "dt.json").write_text(json.dumps(value))
    with pytest.raises(DataError, match=rf"dt\.json: .*{facts}"):
        read_detections(tmp_path / "dt.json", truth)


ANSWER = '[{"bbox_2d": [1, 2, 3, 4], "label": "Cat"}]'
ANSWERS: dict[str, Callable[[int], dict]] = {
    "ours": lambda i: {"image_id": i, "token_ids": [1, 2, 3], "finish_reason": "stop"},
    "text": lambda i: {"image_id": i, "text": ANSWER},
    "no text": lambda i: {"image_id": i, "text": ""},
    "vllm": lambda i: {"image_id": i, "prompt": "x", "outputs": [{"text": ANSWER, "token_ids": [1]}]},
    "openai": lambda i: {
        "custom_id": str(i), "error": None,
        "response": {"status_code": 200, "body": {"choices": [{"message": {"content": ANSWER}}]}},
    },
    "anthropic": lambda i: {
        "custom_id": f"image-{i}",
        "result": {"type": "succeeded", "message": {"content": [{"type": "text", "text": ANSWER}]}},
    },
    "by file name": lambda i: {"image": IMAGES[i], "response": ANSWER},
    "harness": lambda i: {"doc_id": i, "resps": [[ANSWER]], "filtered_resps": [ANSWER]},
}  # fmt: skip


@pytest.mark.parametrize("form", ANSWERS)
@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_file_of_answers_is_called_one_with_the_command_that_reads_it(
    form: str, is_mixed: bool, truth: GroundTruth, tmp_path: Path
) -> None:
    path = tmp_path / "answers.jsonl"
    lines = [*(coco() if is_mixed else []), *map(ANSWERS[form], IMAGES)]
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(DataError) as refusal:
        read_results(path, truth)
    said, command = str(refusal.value).split("\n")
    assert f"detection[{len(ROWS) if is_mixed else 0}]" in said
    assert command.startswith(f"coordexp evaluate --generations {path} --annotations {truth.path} --images")
    assert ("qwen-json" in command) == (form not in ("ours", "no text"))


def test_our_own_answers_lead_to_the_detections_beside_them(truth: GroundTruth, tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text("\n".join(json.dumps(ANSWERS["ours"](i)) for i in IMAGES))
    (tmp_path / "detections.expected.json").write_text("[]")
    with pytest.raises(DataError, match=r"answers\.jsonl: .*detections\.expected\.json"):
        read_results(tmp_path / "answers.jsonl", truth)


def test_a_map_of_texts_is_one_of_answers(truth: GroundTruth, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(dict.fromkeys(IMAGES.values(), ANSWER)))
    with pytest.raises(DataError, match="--answer qwen-json"):
        read_results(tmp_path / "a.json", truth)


@pytest.mark.parametrize(
    ("name", "content", "facts"),
    [
        ("a.csv", b"image_id,xmin,ymin,xmax,ymax,score\n11,1,2,3,4,0.5\n", "CSV.*to_json"),
        ("a.txt", b"image_id,xmin,ymin,xmax,ymax,score\n11,1,2,3,4,0.5\n", "CSV.*to_json"),
        ("a.pkl", pickle.dumps([[1.0]]), "pickle.*outfile_prefix"),
        ("a.xml", b"<?xml version='1.0'?><annotations/>", "XML.*COCO"),
        ("a.parquet", b"PAR1....", "[Pp]arquet"),
    ],
)
def test_a_format_that_is_not_read_is_named(
    name: str, content: bytes, facts: str, truth: GroundTruth, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{re.escape(name)}: .*{facts}"):
        read_results(tmp_path / name, truth)


def test_images_that_a_detector_could_not_open_are_counted(truth: GroundTruth, tmp_path: Path) -> None:
    (tmp_path / "dt.json").write_text(json.dumps(megadetector()))
    remarks = read_results(tmp_path / "dt.json", truth).remarks
    (of_failures,) = [remark for remark in remarks if "(failure)" in remark]
    assert "1 of its images" in of_failures


def test_a_fraction_under_an_unknown_name_is_not_taken_for_a_missing_score_in_silence(
    truth: GroundTruth, tmp_path: Path
) -> None:
    (tmp_path / "dt.json").write_text(json.dumps([{"goodness": row.pop("score"), **row} for row in coco()]))
    results = read_results(tmp_path / "dt.json", truth)
    assert results.scores is None
    assert "goodness" in " ".join(results.remarks)


@pytest.mark.parametrize("axes", [(2,), (3,), (2, 3)])
def test_a_box_with_swapped_corners_has_the_ap_of_the_box_put_in_order(
    axes: tuple[int, ...], truth: GroundTruth, tmp_path: Path
) -> None:
    """``evaluate_detections`` is pycocotools' own, and the second file is in order."""
    swapped = coco()
    box = swapped[0]["bbox"]
    for axis in axes:
        box[axis - 2], box[axis] = box[axis - 2] + box[axis], -box[axis]
    for name, entries in (("swapped", swapped), ("ordered", coco())):
        (tmp_path / f"{name}.json").write_text(json.dumps(entries))
    found = read_detections(tmp_path / "swapped.json", truth)
    assert found.num_swapped == 1
    with pytest.warns(UserWarning, match=r"swapped\.json: 1 of 4 boxes"):
        of_swapped = evaluate_detections(truth.path, tmp_path / "swapped.json")
    by_pycocotools = [of_swapped, evaluate_detections(truth.path, tmp_path / "ordered.json")]
    assert by_pycocotools[0] == by_pycocotools[1]
    pycoco = pytest.importorskip("pycocotools.coco").COCO(str(truth.path))
    assert pycoco.loadRes(json.loads((tmp_path / "ordered.json").read_text())).anns[1]["bbox"] == [10, 20, 30, 40]
    assert found.boxes_px_xywh[0].tolist() == [10, 20, 30, 40]


def test_a_file_most_of_whose_boxes_are_swapped_is_in_another_frame(truth: GroundTruth, tmp_path: Path) -> None:
    entries = [{**entry, "bbox": [100, 90, -50, -40]} for entry in coco()]
    (tmp_path / "dt.json").write_text(json.dumps(entries))
    with pytest.raises(DataError, match=r"px:xywh.* 4 of 4 boxes .*detection\[0\].*--frame px:xyxy"):
        read_detections(tmp_path / "dt.json", truth)


def test_numbers_beyond_thousandths_are_no_thousandths(truth: GroundTruth, tmp_path: Path) -> None:
    """Three images are too few to find the frame, but 1,500 cannot be a thousandth."""
    entries = [{"image_id": i, "label": NAMES[c], "bbox_2d": [900, 20, 1500, 90], "score": s} for i, c, *_, s in ROWS]
    (tmp_path / "dt.json").write_text(json.dumps(entries))
    with pytest.raises(DataError, match=r"norm1000:xyxy.* 4 of 4 boxes .*\b1200\b.*\b1500\b.*--frame"):
        read_detections(tmp_path / "dt.json", truth)
    results = read_results(tmp_path / "dt.json", truth)
    assert detections_of(results, truth, Frame.parse("px:xyxy")).boxes_px_xywh[0].tolist() == [900, 20, 600, 70]


def test_names_of_classes_beside_the_lines_are_used(truth: GroundTruth, tmp_path: Path) -> None:
    lines = {"a_1.txt": ["1 .5 .5 .2 .2 .9"], "classes.txt": ["Cat", "red dog"]}
    found = read_detections(write_lines(tmp_path / "labels", lines), truth)
    assert (found.category_ids.tolist(), found.boxes_px_xywh[0].tolist()) == ([7], [80, 40, 40, 20])


def test_a_deep_file_is_one_sentence(truth: GroundTruth, tmp_path: Path) -> None:
    (tmp_path / "dt.json").write_text("[" * 400 + "]" * 400)
    with pytest.raises(DataError, match=r"\[0\]\[0\]\[0\].*\b20 levels"):
        read_results(tmp_path / "dt.json", truth)


def test_aliases_name_categories(truth: GroundTruth, tmp_path: Path) -> None:
    names = {3: "feline", 7: "Hound"}
    (tmp_path / "dt.json").write_text(json.dumps(coco(category=lambda c: {"label": names[c]})))
    with pytest.raises(DataError, match=r"'feline', 'Hound'.*Cat, red dog\b.*--aliases FILE"):
        read_results(tmp_path / "dt.json", truth)
    results = read_results(tmp_path / "dt.json", truth, aliases={"feline": "cat", "hound": "Red Dog"})
    assert results.categories.tolist() == [row[1] for row in ROWS]


def test_the_cases(shared_data: Path) -> None:
    cases = shared_data / "cases" / "R"
    truth = read_ground_truth(cases / "val.json")
    named, whole = (read_detections(cases / f"{name}.json", truth) for name in ("image_id_stem", "wrapped_coco"))
    np.testing.assert_array_equal(named.by_place().boxes_px_xywh, whole.by_place().boxes_px_xywh)


def test_the_cases_of_unknown_names(shared_data: Path) -> None:
    cases = shared_data / "cases"
    truth = read_ground_truth(cases / "F" / "gt.json")
    partly, negative, qwen = (
        read_detections(cases / name, truth) for name in ("F01/partly.jsonl", "F20/negative.json", "F18/qwen_list.json")
    )
    assert len(partly) == len(negative) == len(qwen) == 69
    assert negative.num_swapped == 1
    for name in ("F02/texts.jsonl", "F02/vllm_outputs.jsonl", "F21/batch_out.jsonl"):
        with pytest.raises(DataError, match="coordexp evaluate --generations .*--answer qwen-json"):
            read_results(cases / name, truth)
