"""Which images belong together: by a field of their records, or by a pattern in their names."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from coordexp.data.sets.image_facts import ImageFact, ImageFacts
from coordexp.data.units import UnitNames, UnitRule, Units, counted_images, read_unit_names
from coordexp.errors import ConfigError, DataError

RECORDS = [
    {"id": 1, "file_name": "clipA_001.jpg", "clip": 7, "light": "dark", "shots": [1, 2]},
    {"id": 2, "file_name": "clipA_002.jpg", "clip": 7.0, "light": "dark"},
    {"id": 3, "file_name": "clipB_001.jpg", "clip": "8", "light": ""},
    {"id": 4, "file_name": "other.jpg", "clip": None, "light": "dark"},
]


def names(text: str, records=RECORDS) -> list[str | None]:
    return UnitRule.parse(text).names(records, where="val.json")


def test_a_field_is_the_unit_whatever_type_its_values_have():
    assert names("clip") == ["7", "7", "8", None]


def test_dots_lead_into_objects():
    records = [{"id": 1, "attributes": {"patient": "a"}}, {"id": 2, "attributes": {"patient": "b"}}, {"id": 3}]
    assert names("attributes.patient", records) == ["a", "b", None]


def test_the_first_group_of_a_pattern_is_the_unit():
    assert names(r"^(clip\w)_(\d+)") == ["clipA", "clipA", "clipB", None]


def test_a_group_that_took_no_part_names_no_unit():
    assert names(r"(clipA)?_?\d*\.jpg") == ["clipA", "clipA", None, None]


def test_units_are_numbered_by_their_first_image():
    units = Units.of(["b", "a", None, "b", None, "a"])
    assert units.of_image.tolist() == [0, 1, 2, 0, 3, 1]
    assert units.num_units == 4
    assert units.has_several
    assert units.spread(np.array([[5, 6, 7, 8]])).tolist() == [[5, 6, 7, 5, 8, 6]]


def test_images_of_their_own_are_numbered_as_images_are():
    for units in (Units.single(3), Units.of(["c", "a", "b"]), Units.of([None, None, None])):
        assert units.of_image.tolist() == [0, 1, 2]
        assert not units.has_several


def test_images_without_a_value_are_counted():
    found = UnitNames("clip", dict(zip((1, 2, 3, 4), names("clip"), strict=True)))
    assert found.num_units == 3
    assert found.sentence == "4 images in 3 units (clip)"
    (remark,) = found.remarks
    assert remark.startswith("1 of 4 images name no unit")


def test_a_rule_that_tells_every_image_apart_says_so():
    found = UnitNames("id", {1: "1", 2: "2"})
    (remark,) = found.remarks
    assert "without units" in remark


def test_images_stand_alone_where_there_are_no_units():
    assert counted_images(660, None) == "660 images"
    assert counted_images(1, 1) == "1 image in 1 unit"


@pytest.mark.parametrize("text", ["", "  ", "(unclosed", ")", "(?:no group)", r"\(escaped\)"])
def test_what_is_no_rule_is_refused(text: str):
    with pytest.raises(ConfigError, match="--unit-by"):
        UnitRule.parse(text)


def test_the_key_is_named_where_the_rule_is_in_a_file():
    with pytest.raises(ConfigError, match=r"data\.unit_by"):
        UnitRule.parse("(", option="data.unit_by")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("clp", ["none of the 4 images", "Did you mean clip?", "clip (2)"]),
        (r"(frame)\d", ["none of the 4 file names", "clipA_001.jpg"]),
        ("light", ["all 2 images into one unit", "'dark'"]),
        (r"(\.)jpg", ["all 4 images into one unit"]),
        ("shots", ["a list"]),
    ],
)
def test_a_rule_that_finds_nothing_or_one_unit_names_the_way_on(text: str, words: list[str]):
    records = [record for record in RECORDS if record["light"]][:2] if text == "light" else RECORDS
    with pytest.raises(DataError, match=re.escape("val.json")) as raised:
        names(text, records)
    for word in words:
        assert word in str(raised.value)


def test_a_file_that_is_not_strict_json_gives_its_fields(tmp_path: Path):
    path = tmp_path / "val.json"
    text = json.dumps({"images": [{"id": "1", "clip": "a"}, {"id": 2, "clip": "a"}, {"id": 3, "clip": "b"}]})
    path.write_text(text.replace('"id": 2', '"score": NaN, "id": 2'))
    found = read_unit_names(path, UnitRule.parse("clip"))
    assert found.of_image == {1: "a", 2: "a", 3: "b"}


def test_a_file_without_images_is_refused(tmp_path: Path):
    path = tmp_path / "val.json"
    path.write_text('{"annotations": []}')
    with pytest.raises(DataError, match="images"):
        read_unit_names(path, UnitRule.parse("clip"))


def test_units_of_a_set_are_those_of_the_images_that_were_evaluated(tmp_path: Path):
    path = tmp_path / "val.json"
    path.write_text(json.dumps({"images": [{"id": 1}, {"id": 2}, {"id": 3}]}))
    facts = ImageFacts("clip", tuple(ImageFact(n, f"{n}.jpg", "a" if n < 3 else "") for n in range(1, 40)))
    found = read_unit_names(path, UnitRule.parse("clip"), facts)
    assert found.of_image == {1: "a", 2: "a", 3: None}
    assert found.sentence == "3 images in 2 units (clip)"
    tagged = ImageFacts(None, tuple(ImageFact(n, f"{n}.jpg", tags={"site": str(n % 2)}) for n in range(1, 40)))
    assert read_unit_names(path, UnitRule.parse("site"), tagged).of_image == {1: "1", 2: "0", 3: "1"}
