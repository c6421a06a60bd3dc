"""Tags of images: fields of an annotation file, or columns of a CSV, whatever made it."""

import json
from pathlib import Path

import pytest

from coordexp.data.sets.image_facts import ImageFact, ImageFacts
from coordexp.detection.ground_truth import GroundTruth, read_ground_truth
from coordexp.detection.tags import Tag, read_tags, tags_of_set
from coordexp.errors import DataError

LIGHTS = ("dark", "bright", "dark", "bright", "dim", "dark")


@pytest.fixture
def truth(tmp_path: Path) -> GroundTruth:
    images = [
        {"id": n, "file_name": f"val/{n:03d}.jpg", "light": light, "day": "one", "name": f"n{n}", "hour": 10 - n}
        for n, light in enumerate(LIGHTS, start=1)
    ]
    path = tmp_path / "val.json"
    path.write_text(json.dumps({"images": images, "annotations": [], "categories": [{"id": 1, "name": "a"}]}))
    return read_ground_truth(path)


def table(truth: GroundTruth, text: str, name: str = "tags.csv", encoding: str = "utf-8") -> str:
    path = truth.path.with_name(name)
    path.write_bytes(text.encode(encoding))
    return str(path)


def test_a_field_is_a_tag(truth: GroundTruth) -> None:
    (tag,) = read_tags(truth, ["light"]).tags
    assert tag.of_image == dict(enumerate(LIGHTS, start=1))
    assert tag.values == ["bright", "dark", "dim"]


def test_numbers_are_in_order_of_size(truth: GroundTruth) -> None:
    (tag,) = read_tags(truth, ["hour"]).tags
    assert tag.values == ["4", "5", "6", "7", "8", "9"]
    assert Tag("t", {1: "10", 2: "9", 3: "none"}).values == ["9", "10", "none"]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("file_name,weather\n001.jpg,wet\n002.jpg,dry\n", "utf-8"),
        ("image;weather\r\nval/001.jpg;wet\r\nval/002.jpg;dry\r\n", "utf-8-sig"),
        ("weather\timage_id\nwet\t1\ndry\t2\n", "utf-8"),
        ('Filename,weather\n"C:\\data\\001.JPG",wet\n/other/002.jpg,dry\n\n', "utf-8"),
        ("id,weather\n1.0,wet\n2.0,dry\n", "utf-8"),
    ],
)
def test_tables_of_people_are_read(truth: GroundTruth, text: str, encoding: str) -> None:
    found = read_tags(truth, [table(truth, text, encoding=encoding)])
    (tag,) = found.tags
    assert (tag.name, tag.of_image) == ("weather", {1: "wet", 2: "dry"})
    (remark,) = found.remarks
    assert "4 of 6" in remark
    assert "weather" in remark


def test_rows_of_other_images_and_columns_that_make_no_slices_are_counted(truth: GroundTruth) -> None:
    rows = "".join(f"{n:03d}.jpg,{LIGHTS[n - 1]},same,\n" for n in range(1, 7))
    found = read_tags(truth, [table(truth, f"file,light,site,notes\n{rows}999.jpg,dark,same,\n")])
    assert [tag.name for tag in found.tags] == ["light"]
    for remark, facts in zip(found.remarks, (["'site'", "'same'"], ["'notes'"], ["1 of 7", "'999.jpg'"]), strict=True):
        assert "tags.csv" in remark
        assert [fact for fact in facts if fact not in remark] == []


def test_a_row_that_is_shorter_than_the_heads_names_no_image_and_is_counted(truth: GroundTruth) -> None:
    found = read_tags(truth, [table(truth, "weather,file\nwet,001.jpg\ndry,002.jpg\nwet\n")])
    (tag,) = found.tags
    assert tag.of_image == {1: "wet", 2: "dry"}
    (of_row, _) = found.remarks
    assert "1 of 3" in of_row


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("ligth", ["--slices ligth", "6 images", "light"]),
        ("day", ["'one'"]),
        ("missing.csv", ["missing.csv"]),
    ],
)
def test_a_field_that_makes_no_slices_names_the_way_on(truth: GroundTruth, asked: str, words: list[str]) -> None:
    with pytest.raises(DataError) as raised:
        read_tags(truth, [asked])
    for word in words:
        assert word in str(raised.value)


def test_too_many_values_are_refused_with_their_number(tmp_path: Path) -> None:
    images = [{"id": n, "file_name": f"{n}.jpg", "serial": f"s{n}"} for n in range(5000)]
    path = tmp_path / "val.json"
    path.write_text(json.dumps({"images": images, "annotations": [], "categories": [{"id": 1, "name": "a"}]}))
    with pytest.raises(DataError, match=r"serial.*5,000.*\b50\b"):
        read_tags(read_ground_truth(path), ["serial"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file,light\na.jpg,dark\nb.jpg,dim\n", ["2 rows", "'a.jpg'", "'val/001.jpg'"]),
        ("picture,light\n001.jpg,dark\n", ["line 1", "'picture, light'", "file_name"]),
        ("file\n001.jpg\n", ["'file'"]),
        ("file,light\n", []),
        ("file,light\n001.jpg,dark\n001.jpg,dim\n", ["lines 2 and 3", "image 1", "'dark'", "'dim'"]),
        ("file,light\n001.jpg,dark\n002.jpg,dark\n", ["'light'", "'dark'"]),
    ],
)
def test_a_table_that_says_nothing_of_these_images_is_one_sentence(
    truth: GroundTruth, text: str, words: list[str]
) -> None:
    with pytest.raises(DataError) as raised:
        read_tags(truth, [table(truth, text)])
    for word in ["tags.csv", *words]:
        assert word in str(raised.value)


def test_another_encoding_is_named(truth: GroundTruth) -> None:
    with pytest.raises(DataError, match="UTF-8"):
        read_tags(truth, [table(truth, "file,light\n001.jpg,gr\u00fcn\n", encoding="latin-1")])


def test_tags_of_a_set_are_those_of_the_images_that_were_evaluated(truth: GroundTruth) -> None:
    """A run with evaluation.max_images has a part of its set's validation images."""
    facts = ImageFacts(
        "clip",
        tuple(
            ImageFact(
                n, f"{n}.jpg", "c", {"site": "a" if n < 4 else "b", "one": "x", **({"late": "y"} if n > 6 else {})}
            )
            for n in range(1, 40)
        ),
    )
    found = tags_of_set(truth, facts)
    (tag,) = found.tags
    assert tag.of_image == {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "b"}
    of_one, of_late = found.remarks
    assert "'one'" in of_one
    assert "'late'" in of_late
