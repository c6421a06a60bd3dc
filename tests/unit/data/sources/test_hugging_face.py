"""Hugging Face's ``imagefolder`` and parquet files, in the forms in which people have them, give the same boxes."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from coordexp.config.schema import ExperimentConfig
from coordexp.config.schema.data import Data
from coordexp.data.sources.door import load_split, read_unwritten
from coordexp.data.sources.source import SPLITS, found_sentence, source_of
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import DataError
from coordexp.findings import collect
from coordexp.train.setup.door import num_images_of, open_set_of
from tests.unit.data.sources.test_folder import NAMES, SIZE, TRUTH, picture, write

FOLDERS = {"train": "train", "val": "validation"}
CARD = """---
dataset_info:
  features:
  - name: label
    dtype:
      class_label:
        names:
          '0': a picture's own label
  - name: objects
    sequence:
    - name: bbox
      sequence: float32
      length: 4
    - name: category
      dtype:
        class_label:
          names:
            '0': cat
            '1': traffic light
---
# My set
"""


def xywh(box):
    x1, y1, x2, y2 = box
    return [float(x1), float(y1), float(x2 - x1), float(y2 - y1)]


def columns(objects, *, key="categories", named=False):
    return {"bbox": [xywh(box) for _, box in objects], key: [NAMES[c] if named else c for c, _ in objects]}


def lines(split, make):
    return "\n".join(json.dumps(make(name, objects)) for name, objects in TRUTH[split].items())


def by_folder(root: Path, metadata="metadata.jsonl") -> None:
    for split, folder in FOLDERS.items():
        for name in TRUTH[split]:
            picture(root / "data" / folder / f"{name}.jpg")
        text = lines(split, lambda name, objects: {"file_name": f"{name}.jpg", "objects": columns(objects)})
        write(root / "data" / folder / metadata, text)
    write(root / "README.md", CARD)


def one_file_with_folders(root: Path) -> None:
    texts = []
    for split in SPLITS:
        for name in TRUTH[split]:
            picture(root / split / f"{name}.jpg")
        of = f"{split}/"
        texts.append(
            lines(
                split, lambda name, objs, of=of: {"file_name": f"{of}{name}.jpg", "objects": columns(objs, named=True)}
            )
        )
    write(root / "metadata.jsonl", "\n".join(texts))


def comma_separated(root: Path) -> None:
    for split, folder in FOLDERS.items():
        text = io.StringIO()
        rows = csv.writer(text)
        rows.writerow(["file_name", "objects"])
        for name, objects in TRUTH[split].items():
            picture(root / folder / f"{name}.jpg")
            written = columns(objects, key="category", named=True)
            rows.writerow([f"{name}.jpg", json.dumps(written) if split == "train" else repr(written)])
        write(root / folder / "metadata.csv", text.getvalue())


def lists_of_objects(root: Path) -> None:
    for split in SPLITS:
        for name in TRUTH[split]:
            picture(root / split / f"{name}.jpg")
        write(
            root / split / "metadata.jsonl",
            lines(
                split,
                lambda name, objects: {
                    "file_name": f"{name}.jpg",
                    "width": SIZE[0],
                    "height": SIZE[1],
                    "objects": [{"bbox": xywh(box), "label": NAMES[c]} for c, box in objects],
                },
            ),
        )


def columns_of_the_record(root: Path) -> None:
    for split in SPLITS:
        for name in TRUTH[split]:
            picture(root / split / f"{name}.jpg")
        text = lines(split, lambda name, objs: {"file_name": f"{name}.jpg", **columns(objs, key="labels", named=True)})
        write(root / split / "metadata.jsonl", text)


def parquet(root: Path, *, shards=1, in_schema=True, as_structs=False, folder="data") -> None:
    for split, name_of_split in FOLDERS.items():
        rows = []
        for name, objects in TRUTH[split].items():
            content = io.BytesIO()
            Image.new("RGB", SIZE).save(content, "JPEG")
            written = columns(objects, key="category")
            if as_structs:
                pairs = zip(written["bbox"], written["category"], strict=True)
                written = [{"bbox": box, "category": category} for box, category in pairs]
            rows.append({"image": {"bytes": content.getvalue(), "path": f"{name}.jpg"}, "objects": written})
        table = pa.Table.from_pylist(rows)
        if in_schema:
            category = {"feature": {"names": list(NAMES), "_type": "ClassLabel"}, "_type": "List"}
            features = {"image": {"_type": "Image"}, "objects": {"bbox": {"_type": "List"}, "category": category}}
            table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        else:
            write(root / "README.md", CARD)
        (root / folder).mkdir(parents=True, exist_ok=True)
        step = -(-len(rows) // shards)
        for at in range(shards):
            path = root / folder / f"{name_of_split}-{at:05d}-of-{shards:05d}.parquet"
            pq.write_table(table.slice(at * step, step), path)


def parquet_in_shards(root: Path) -> None:
    parquet(root, shards=2, in_schema=False)


def parquet_of_structs(root: Path) -> None:
    parquet(root, as_structs=True, folder="default")


LAYOUTS = [by_folder, one_file_with_folders, comma_separated, lists_of_objects, columns_of_the_record]
LAYOUTS += [parquet, parquet_in_shards, parquet_of_structs]


@pytest.mark.parametrize("lay_out", LAYOUTS)
def test_a_layout_is_read_to_the_boxes_that_are_in_it(tmp_path, lay_out):
    root = tmp_path / "set"
    lay_out(root)
    data = Data.model_validate({"path": root})
    assert "Hugging Face" in found_sentence(data)
    for split, truth in TRUTH.items():
        read = load_split(data, split, data_dir=tmp_path / "made")
        assert {sample.image.stem for sample in read.samples} == set(truth)
        for sample in read.samples:
            wanted = truth[sample.image.stem]
            assert sample.objects.descs == tuple(NAMES[c] for c, _ in wanted)
            boxes = sample.objects.boxes_norm_xyxy * np.array(SIZE * 2)
            assert np.allclose(boxes, np.array([box for _, box in wanted]), atol=1e-3)
            assert sample.image.is_file()
    truth = read_ground_truth(source_of(data, "val", data_dir=tmp_path / "made").ground_truth())
    assert len(truth.boxes_px_xywh) == 2


def test_four_paths_read_a_metadata_file_too(tmp_path):
    by_folder(tmp_path)
    places = {f"{split}_annotations": tmp_path / "data" / FOLDERS[split] / "metadata.jsonl" for split in SPLITS}
    places |= {f"{split}_images": tmp_path / "data" / FOLDERS[split] for split in SPLITS}
    read = load_split(Data.model_validate({"format": "coco", **places}), "train", data_dir=tmp_path / "made")
    assert read.counts["boxes"] == 8


def test_pictures_are_unpacked_once_and_again_when_the_files_change(tmp_path):
    root = tmp_path / "set"
    parquet(root)
    data = Data.model_validate({"path": root})

    def read():
        return load_split(data, "train", data_dir=tmp_path / "made").samples

    first = read()[0].image
    stamp = first.stat().st_mtime_ns
    assert read()[0].image.stat().st_mtime_ns == stamp
    for path in root.rglob("*.parquet"):
        path.unlink()
    parquet(root, in_schema=False)
    assert read()[0].image.stat().st_mtime_ns != stamp


def test_nothing_is_unpacked_where_the_files_are_only_looked_for(tmp_path):
    root = tmp_path / "set"
    parquet(root)
    data = Data.model_validate({"path": root})
    found_sentence(data)
    source_of(data, "train", data_dir=tmp_path / "made")
    assert not (tmp_path / "made").exists()
    findings, loaded = collect(read_unwritten(data, data_dir=tmp_path / "made"))
    assert loaded is not None
    assert {finding.verdict for finding in findings} == {"ok"}


def test_categories_without_names_are_numbered_and_said(tmp_path):
    by_folder(tmp_path)
    (tmp_path / "README.md").unlink()
    read = load_split(Data.model_validate({"path": tmp_path}), "train", data_dir=tmp_path / "made")
    assert read.categories == {1: "class 0", 2: "class 1"}
    assert any("class 0" in note for note in read.notes)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"file_name": "t0.jpg", "objects": None}, "objects"),
        ({"file_name": "t0.jpg", "text": "a cat"}, "file_name, text.*bbox"),
        ({"file_name": "t0.jpg", "objects": {"rects": [[1, 2, 3, 4]], "categories": [0]}}, "rects, categories"),
        ({"file_name": "t0.jpg", "objects": {"bbox": [[1, 2, 3, 4]], "categories": []}}, r"\b1 box.*\b0 cat"),
        ({"file_name": "t0.jpg", "objects": {"bbox": [[1, 2, 3]], "categories": [0]}}, r"\[1, 2, 3\]"),
        ({"file_name": "t0.jpg", "objects": {"bbox": [[1, 2, 3, 4]], "categories": [7]}}, r"category.*\b7\b"),
        ({"file_name": "gone.jpg", "objects": {"bbox": [], "categories": []}}, r"gone\.jpg"),
        ('{"file_name": "t0.jpg", "obj', "JSON"),
    ],
)
def test_a_record_that_cannot_be_read_is_named_and_never_a_picture_without_objects(tmp_path, record, reason):
    by_folder(tmp_path)
    path = tmp_path / "data" / "train" / "metadata.jsonl"
    rest = path.read_text().split("\n")[1:]
    write(path, "\n".join([*rest, record if isinstance(record, str) else json.dumps(record)]))
    with pytest.raises(DataError, match=rf"metadata\.jsonl: line 4: .*{reason}"):
        load_split(Data.model_validate({"path": tmp_path}), "train", data_dir=tmp_path / "made")


def test_empty_lists_are_a_picture_without_objects(tmp_path):
    by_folder(tmp_path)
    path = tmp_path / "data" / "train" / "metadata.jsonl"
    record = {"file_name": "t0.jpg", "objects": {"bbox": [], "categories": []}}
    write(path, "\n".join([json.dumps(record), *path.read_text().split("\n")[1:]]))
    read = load_split(Data.model_validate({"path": tmp_path}), "train", data_dir=tmp_path / "made")
    assert read.counts["images_without_objects"] == 1


def test_two_corners_in_the_place_of_width_and_height_are_refused(tmp_path):
    for split in SPLITS:
        records = []
        for at in range(20):
            picture(tmp_path / split / f"{at}.jpg")
            objects = {"bbox": [[30 + at, 15, 60 + at, 39]], "categories": ["cat"]}
            records.append(json.dumps({"file_name": f"{at}.jpg", "objects": objects}))
        write(tmp_path / split / "metadata.jsonl", "\n".join(records))
    with pytest.raises(DataError, match="left, top, right, bottom"):
        load_split(Data.model_validate({"path": tmp_path}), "train", data_dir=tmp_path / "made")


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more", None])
def test_a_parquet_file_that_is_cut_short(tmp_path, content):
    parquet(tmp_path)
    path = next(tmp_path.rglob("train-*.parquet"))
    path.write_bytes(path.read_bytes()[:500] if content is None else content)
    with pytest.raises(DataError, match=r"train-00000-of-00001\.parquet"):
        found_sentence(Data.model_validate({"path": tmp_path}))


def test_a_row_without_the_bytes_of_its_picture_is_named(tmp_path):
    parquet(tmp_path)
    path = next(tmp_path.rglob("train-*.parquet"))
    rows = pq.read_table(path).to_pylist()
    rows[1]["image"] = {"bytes": None, "path": "/gone/t1.jpg"}
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(DataError, match="row 1: image"):
        load_split(Data.model_validate({"path": tmp_path}), "train", data_dir=tmp_path / "made")


def test_a_dry_run_counts_pictures_in_parquet_and_leaves_nothing_behind(tmp_path):
    parquet(tmp_path / "set")
    config = ExperimentConfig.model_validate(
        {"experiment": {"name": "x", "runs_dir": str(tmp_path / "runs")}, "data": {"path": str(tmp_path / "set")}}
    )
    assert [num_images_of(config, split) for split in ("train", "val")] == [len(TRUTH["train"]), len(TRUTH["val"])]
    assert not (tmp_path / "runs").exists()
    open_set_of(config)
    assert num_images_of(config, "train") == len(TRUTH["train"])
