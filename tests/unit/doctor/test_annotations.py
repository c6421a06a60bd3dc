import json

import pytest

from coordexp.doctor import annotations as module
from coordexp.doctor.annotations import read_head
from coordexp.errors import DataError
from tests.unit.doctor.doctor_support import write_coco


def _in_order(path, *names: str) -> None:
    data = json.loads(path.read_text())
    path.write_text(json.dumps({name: data[name] for name in names}))


@pytest.mark.parametrize(
    "order",
    [
        ("images", "annotations", "categories"),
        ("categories", "annotations", "images"),
        ("annotations", "categories", "images"),
    ],
)
def test_sections_in_any_order(tmp_path, order):
    path, _ = write_coco(tmp_path, num_images=5)
    _in_order(path, *order)
    head = read_head(path)
    assert (len(head.images), head.num_annotations, head.categories, head.all_images) == (5, 5, ["red circle"], True)
    assert head.bad == []


def test_only_the_first_annotations_are_read_and_categories_are_found_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_ANNOTATIONS_BYTES", 200)
    path, _ = write_coco(tmp_path, num_images=50)
    # What lies between is no JSON: it is not looked at.
    text = path.read_text()
    middle = text.index('"image_id": 40')
    path.write_text(text[:middle] + "@" + text[middle + 1 :])
    head = read_head(path)
    assert 1 <= head.num_annotations < 10
    assert head.categories == ["red circle"]
    assert len(head.images) == 50


def test_a_damaged_beginning_is_named_by_line(tmp_path):
    path, _ = write_coco(tmp_path)
    path.write_text(path.read_text().replace('"width": 64', '"width": ,', 1))
    with pytest.raises(DataError, match="line 1 column"):
        read_head(path)


def test_a_cut_file(tmp_path):
    path, _ = write_coco(tmp_path)
    path.write_text(path.read_text()[:-1])
    with pytest.raises(DataError, match="cut short, copy it again"):
        read_head(path)
    path.write_text("")
    with pytest.raises(DataError, match="cut short"):
        read_head(path)


def test_a_section_that_is_missing(tmp_path):
    path, _ = write_coco(tmp_path)
    _in_order(path, "images", "categories")
    with pytest.raises(DataError, match="'annotations' is missing"):
        read_head(path)


def test_entries_that_cannot_be_used_are_kept_with_their_place(tmp_path):
    path, _ = write_coco(tmp_path)
    data = json.loads(path.read_text())
    data["images"][1] = 7
    path.write_text(json.dumps(data))
    assert read_head(path).bad == ["images[1]: the entry is a int, expected an object"]
