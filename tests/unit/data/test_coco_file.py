"""The reader of annotation files itself: what is strict JSON and what is not read alike, and nothing else is kept."""

import json

import msgspec
import pytest

from coordexp.data.coco.file import read_coco_file
from coordexp.data.coco.lvis import LvisCategory, LvisImage


def contents(path, **types):
    """All that was read, comparable."""
    file = read_coco_file(path, **types)
    return [
        ([msgspec.to_builtins(entry) for entry in section.good], section.bad, section.places.tolist())
        for section in (file.categories, file.images, file.annotations)
    ]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"bbox": [1, 2.5, 3, 10**400]},
        {"bbox": [1, 2, 3]},
        {"id": "7"},
        {"image_id": 2**63},
        {"iscrowd": 2},
        {"iscrowd": True},
        {"ignore": 1.0},
        {"area": "large"},
        {"category_id": None},
        {"segmentation": {"counts": "x", "size": [1, 2]}},
    ],
)
def test_a_file_that_is_not_strict_json_reads_alike(coco, change):
    """``NaN`` anywhere sends the file to Python's parser; what it holds besides must not depend on that."""
    coco.document["annotations"][1] |= change
    strict = contents(coco.save().annotations)
    coco.document["info"] = {"score": float("nan")}
    assert contents(coco.save().annotations) == strict
    assert [len(good) + len(bad) for good, bad, _ in strict] == [2, 2, 2]


def test_places_are_those_in_the_file(coco):
    coco.document["annotations"] = [coco.document["annotations"][0], 7, {"id": 5}, coco.document["annotations"][1]]
    good, bad, places = contents(coco.save().annotations)[2]
    assert [entry["id"] for entry in good] == [1, 2]
    assert places == [0, 3]
    assert [(entry.place, entry.key) for entry in bad] == [(1, None), (2, 5)]


def test_fields_of_another_format_are_checked_too(coco):
    _, image, _ = contents(coco.annotations, image_type=LvisImage, category_type=LvisCategory)
    assert image[0] == []
    assert image[1][0].reason == "neg_category_ids is missing, expected a list of category ids"


def test_sections_in_any_order(coco):
    wanted = contents(coco.annotations)
    document = coco.document
    coco.annotations.write_text(json.dumps({name: document[name] for name in ("annotations", "categories", "images")}))
    assert contents(coco.annotations) == wanted
