"""The COCO reader: what it returns, what it refuses and how it says so."""

import json

import numpy as np
import pytest
from pycocotools.coco import COCO

from coordexp.config.schema.data import Data
from coordexp.data.sources.coco.source import CocoSource
from coordexp.data.sources.door import load_split
from coordexp.data.sources.source import source_of
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import DataError
from tests.support.samples import pairs_of


def read(folder, **options):
    return CocoSource(folder.annotations, folder.images).read(**options)


@pytest.mark.parametrize("indent", [None, 1])
def test_a_section_that_stands_twice_is_refused(coco, indent):
    """Two files joined by hand: the first list would be lost without a word."""
    document = json.loads(coco.annotations.read_text())
    coco.annotations.write_text(json.dumps(document, indent=indent))
    assert len(read(coco).samples) == 2
    again = ', "annotations": ' + json.dumps(document["annotations"][:1]) + "}"
    coco.annotations.write_text(coco.annotations.read_text().rstrip().removesuffix("}") + again)
    with pytest.raises(DataError, match="'annotations'") as refused:
        read(coco)
    assert str(coco.annotations) in str(refused.value)
    assert f"{len(document['annotations'])} and 1" in str(refused.value)


def test_samples_by_hand(coco):
    data = read(coco)
    first, second = data.samples
    assert (first.image, first.width, first.height, first.image_id) == (coco.images / "a.jpg", 100, 50, 7)
    assert pairs_of(first.objects) == [("traffic light", (0.1, 0.4, 0.4, 0.8)), ("cat", (0.0, 0.0, 1.0, 1.0))]
    assert (second.image_id, len(second.objects)) == (3, 0)
    assert data.categories == {1: "cat", 2: "traffic light"}
    assert data.rejected == ()
    assert data.counts == {
        "images": 2,
        "annotations": 2,
        "categories": 2,
        "boxes": 2,
        "crowd": 0,
        "ignored": 0,
        "clipped": 0,
        "no_extent": 0,
        "swapped": 0,
        "thin": 0,
        "images_without_objects": 1,
        "of_rejected_images": 0,
        "trimmed_names": 0,
        "repeated_file_names": 0,
        "rejected_images": 0,
        "rejected_annotations": 0,
        "rejected_categories": 0,
    }


def test_crowd_boxes_are_counted_and_left_out(coco):
    coco.document["annotations"][1]["iscrowd"] = 1
    data = read(coco.save())
    assert data.samples[0].objects.descs == ("traffic light",)
    assert data.counts["crowd"] == 1
    assert data.counts["boxes"] == 1


@pytest.mark.parametrize(
    ("bbox", "box"),
    [
        ([-10, -10, 30, 30], (0.0, 0.0, 0.2, 0.4)),
        ([90, 40, 30, 30], (0.9, 0.8, 1.0, 1.0)),
        ([-5, -5, 500, 500], (0.0, 0.0, 1.0, 1.0)),
        ([99.5, 10, 1e308, 10.5], (0.995, 0.2, 1.0, 0.41)),
    ],
)
def test_boxes_are_clipped_to_the_image_and_counted(coco, bbox, box):
    coco.document["annotations"][0]["bbox"] = bbox
    data = read(coco.save())
    assert tuple(data.samples[0].objects.boxes_norm_xyxy[0]) == pytest.approx(box)
    assert data.counts["clipped"] == 1


def _set(section, index, **fields):
    def change(document):
        document[section][index] |= fields

    return change


def _drop(section, index, field):
    def change(document):
        del document[section][index][field]

    return change


def _append(section, entry):
    def change(document):
        document[section].append(entry)

    return change


@pytest.mark.parametrize(
    ("change", "entry", "reason"),
    [
        (_set("annotations", 1, bbox=[100, 0, 10, 10]), "annotations[1] (id 2)", "outside its image of 100 x 50"),
        (_set("annotations", 1, bbox=[float("nan"), 1, 5, 5]), "annotations[1] (id 2)", "not finite"),
        (_set("annotations", 1, bbox=[0, 0, 5]), "annotations[1] (id 2)", "expected four numbers"),
        (_drop("annotations", 1, "bbox"), "annotations[1] (id 2)", "bbox is missing"),
        (_set("annotations", 1, category_id=9), "annotations[1] (id 2)", "no usable category has the id 9"),
        (_set("annotations", 1, image_id=9), "annotations[1] (id 2)", "no image has the id 9"),
        (_append("annotations", [1, 2]), "annotations[2]", "the entry is a list of 2 values"),
        (_drop("categories", 0, "name"), "categories[0] (id 1)", "name is missing"),
        (_set("categories", 0, id=2), "categories[1] (id 2)", "category id 2 was used before"),
        (_set("images", 1, id=7), "images[1] (id 7)", "image id 7 was used before"),
        (_set("images", 1, height=-5), "images[1] (id 3)", "height is -5"),
        (_set("images", 1, width=60_000, height=60_000), "images[1] (id 3)", "too large"),
        (_set("images", 1, width=6400, height=2), "images[1] (id 3)", "6400 x 2"),
        (_set("images", 1, file_name="c.png"), "images[1] (id 3)", "c.png"),
        (_set("images", 1, file_name="http://host/c.png"), "images[1] (id 3)", "http://host/c.png"),
        (_set("images", 1, file_name="../secret.png"), "images[1] (id 3)", "../secret.png"),
        (_set("images", 1, file_name=None), "images[1] (id 3)", "file name"),
    ],
)  # fmt: skip
def test_a_bad_record_is_named_and_stops_the_reading(coco, change, entry, reason):
    change(coco.document)
    with pytest.raises(DataError) as stopped:
        read(coco.save())
    message = str(stopped.value)
    assert message.startswith(f"{coco.annotations}: ")
    assert f"{entry}: " in message
    assert reason in message
    assert "data.max_bad_fraction" in message
    rejected = read(coco, max_bad_fraction=0.6).rejected
    assert rejected[0].where == f"{coco.annotations}: {entry}"
    assert reason in rejected[0].reason


def test_annotations_of_a_bad_image_or_category_do_not_outlive_it(coco):
    coco.document["images"][0]["file_name"] = "gone.jpg"
    data = read(coco.save(), max_bad_fraction=0.5)
    assert [sample.image_id for sample in data.samples] == [3]
    assert data.counts["of_rejected_images"] == 2
    assert data.counts["rejected_images"] == 1


def test_the_fraction_is_that_of_each_kind(coco):
    extra = [dict(coco.document["annotations"][0], id=i) for i in range(3, 101)]
    coco.document["annotations"] += extra
    coco.document["annotations"][50]["bbox"] = [200, 0, 5, 5]
    assert len(read(coco.save(), max_bad_fraction=0.01).rejected) == 1
    with pytest.raises(DataError, match="1 of 100 annotations"):
        read(coco, max_bad_fraction=0.009)
    # One of two images is half of the images, though it is 1 % of all records.
    coco.document["annotations"][50]["bbox"] = [0, 0, 5, 5]
    coco.document["images"][1]["width"] = -1
    with pytest.raises(DataError, match="1 of 2 images"):
        read(coco.save(), max_bad_fraction=0.01)


@pytest.mark.ci
def test_many_bad_records_make_a_short_message(coco):
    coco.document["annotations"] = [
        {"id": i, "image_id": 7, "category_id": 1, "bbox": ["x" * 5000] * 4} for i in range(1000)
    ]
    with pytest.raises(DataError, match=r"1000 of 1000 annotations.* 995 ") as stopped:
        read(coco.save())
    assert len(str(stopped.value)) < 2000


def test_two_images_may_name_one_file(coco):
    coco.document["images"][1] |= {"file_name": "./a.jpg", "width": 100, "height": 50}
    data = read(coco.save())
    assert [sample.image_id for sample in data.samples] == [7, 3]
    assert data.counts["repeated_file_names"] == 1


def test_names_of_all_kinds(coco):
    (coco.images / "tief" / "ötz").mkdir(parents=True)
    (coco.images / "b.png").rename(coco.images / "tief" / "ötz" / "日本 1.png")
    coco.document["images"][1]["file_name"] = "tief/ötz/日本 1.png"
    coco.document["categories"][0]["name"] = " Ünïcode 猫 🐈‍⬛ "
    data = read(coco.save())
    assert data.samples[1].image.is_file()
    assert data.samples[0].objects.descs[1] == "Ünïcode 猫 🐈‍⬛"


def test_an_absolute_path_inside_the_folder_is_fine(coco):
    coco.document["images"][1]["file_name"] = str(coco.images / "b.png")
    assert read(coco.save()).samples[1].image == coco.images / "b.png"


def test_the_image_folder_must_be_there(coco):
    with pytest.raises(DataError, match="elsewhere"):
        CocoSource(coco.annotations, coco.root / "elsewhere").read()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "line 1 column 1"),
        (b"[]", "top level"),
        (b'{"images": []}', "'categories'"),
        (b'{"images": [], "annotations": {}, "categories": []}', "'annotations'.*list"),
        (b'{"images": [], "annotations": [], "categories": []}', "images"),
        (b'{"images": 7, "annotations": [], "categories": [], "x": NaN}', "'images'.*number"),
        (b'{"images": [], "x": NaN, "y": [}', "JSON"),
        (b'{"images": "\xff"}', "byte 12 .*UTF-8"),
        (b'{"images": [', "line 1 column 13"),
        (b'{"images": []\n "annotations"', "line 2 column 2.*Expecting ','"),
    ],
)
def test_files_that_are_no_coco(coco, content, reason):
    coco.annotations.write_bytes(content)
    with pytest.raises(DataError, match=reason):
        read(coco)


def test_a_missing_file_and_a_folder_in_its_place(coco):
    with pytest.raises(DataError, match=r"gone\.json"):
        CocoSource(coco.root / "gone.json", coco.images).read()
    with pytest.raises(DataError, match="images.*folder"):
        CocoSource(coco.images, coco.images).read()


@pytest.mark.parametrize("split", ["train2017", "val2017"])
def test_real_coco_agrees_with_pycocotools(coco_tiny, split, capsys):
    path = coco_tiny / "annotations" / f"instances_{split}.json"
    data = CocoSource(path, coco_tiny / "images" / split).read()
    reference = COCO(str(path))
    capsys.readouterr()
    assert [sample.image_id for sample in data.samples] == reference.getImgIds()
    assert data.rejected == ()
    assert data.counts["crowd"] == len(reference.getAnnIds(iscrowd=True))
    for sample in data.samples:
        wanted = reference.loadAnns(reference.getAnnIds(imgIds=sample.image_id, iscrowd=False))
        scale = np.array([sample.width, sample.height] * 2)
        found = sample.objects.boxes_norm_xyxy * scale
        boxes = np.array([ann["bbox"] for ann in wanted], float).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        np.testing.assert_allclose(found, boxes.clip(0, scale), atol=1e-9)
        names = [reference.cats[ann["category_id"]]["name"] for ann in wanted]
        assert list(sample.objects.descs) == names


def test_categories_that_read_the_same_are_merged_where_a_key_says_so(coco):
    coco.document["categories"].append({"id": 9, "name": " CAT "})
    coco.document["annotations"][0]["category_id"] = 9
    coco.save()
    places = {f"{split}_{what}": path for split in ("train", "val") for what, path in coco_paths(coco).items()}
    with pytest.raises(DataError, match=r"'CAT' and 'cat'.*data\.categories\.merge=true"):
        load_split(Data(format="coco", **places), "val", data_dir=coco.root)
    data = Data.model_validate({"format": "coco", **places, "categories": {"merge": True}})
    read = load_split(data, "val", data_dir=coco.root)
    assert sorted(read.categories.values()) == ["cat", "traffic light"]
    truth = read_ground_truth(source_of(data, "val", data_dir=coco.root).ground_truth())
    assert truth.categories == read.categories
    assert set(truth.category_ids.tolist()) <= set(read.categories)


def test_a_box_drawn_from_right_to_left_is_turned_round_for_training_and_for_comparing(coco):
    coco.document["annotations"][0]["bbox"] = [60, 30, -40, -20]
    read = CocoSource(coco.save().annotations, coco.images).read()
    assert tuple(read.samples[0].objects.boxes_norm_xyxy[0]) == pytest.approx((0.2, 0.2, 0.6, 0.6))
    assert read.counts["swapped"] == 1
    assert read_ground_truth(coco.annotations).boxes_px_xywh[0].tolist() == [20, 10, 40, 20]


def coco_paths(coco):
    return {"annotations": coco.annotations, "images": coco.images}
