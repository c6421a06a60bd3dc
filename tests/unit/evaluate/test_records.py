"""Counts of generated text: duplicates, coord mass, malformed pieces, images that are empty or cut."""

import math
from pathlib import Path

import pytest

from coordexp.coord_tokens.grammar.parse import FAILURE_KINDS, ParsedObject, ParsedSequence
from coordexp.detection.categories import CategoryIndex
from coordexp.evaluate.records import ImageRecord, Scorer, num_duplicates, record_counts, write_records

BOX = (100, 100, 200, 200)


def item(desc: str = "cat", bins: tuple = BOX) -> ParsedObject:
    expected = tuple(k / 1000 for k in bins)
    return ParsedObject(desc, bins, expected, (1.0,) * 4, (-0.5,) * 4, (-0.5,), 0)


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        ([], 0),
        ([item()], 0),
        ([item(), item()], 1),
        ([item(), item(), item()], 2),
        ([item("a cat"), item("  A  Cat ")], 1),  # the same after folding
        ([item("cat"), item("dog")], 0),
        # 100 x 100 in 100 x 111: IoU .9009; in 100 x 112: .893.
        ([item(), item(bins=(100, 100, 200, 211))], 1),
        ([item(), item(bins=(100, 100, 200, 212))], 0),
        ([item(), item(bins=(200, 200, 100, 100))], 1),  # corners are ordered first
        ([item(bins=(5, 5, 5, 9)), item(bins=(5, 5, 5, 9))], 1),  # no area, but the same box twice
        ([item(bins=(5, 5, 5, 9)), item(bins=(5, 5, 5, 8))], 0),
        ([item(), item(bins=(500, 500, 600, 600)), item()], 1),  # any earlier one, not just the last
    ],
)
def test_duplicates_by_hand(objects: list[ParsedObject], expected: int) -> None:
    assert num_duplicates(objects) == expected


def scorer() -> Scorer:
    return Scorer(CategoryIndex({1: "cat"}), "coord", {1: (100, 100), 2: (100, 100), 3: (100, 100)})


def test_counts_by_hand() -> None:
    records = [
        ImageRecord(1, ParsedSequence((item(), item(), item("dog")), ("unclosed",)), True, coord_mass=(0.5,) * 12),
        ImageRecord(2, ParsedSequence((item(),), ("unclosed", "stray_tokens")), False, coord_mass=(1.0,) * 4),
        ImageRecord(3, ParsedSequence((), ()), False),
    ]
    counts = record_counts(records, scorer())
    kinds = {f"malformed/{kind}": 0.0 for kind in FAILURE_KINDS}
    assert counts == kinds | {
        "num_objects": 4,
        "malformed": 3,
        "malformed/unclosed": 2,
        "malformed/stray_tokens": 1,
        "malformed_fraction": pytest.approx(3 / 7),
        "unknown_category": 1,
        "duplicates": 1,  # within an image: the one of image 2 is new there
        "empty_images": 1,
        "truncated_images": 1,
        "coord_mass": pytest.approx((12 * 0.5 + 4) / 16),
    }


def test_no_coord_token_no_mass() -> None:
    assert "coord_mass" not in record_counts([ImageRecord(1, ParsedSequence((), ()), False)], scorer())


def test_detections_and_objects_go_together(tmp_path: Path) -> None:
    records = [
        ImageRecord(1, ParsedSequence((item("dog"), item()), ()), False),
        ImageRecord(2, ParsedSequence((item(bins=(1, 2, 3, 4)),), ()), False),
    ]
    table = scorer().objects(records)
    detections = list(scorer().detections(records, "argmax"))
    assert table.image_ids.tolist() == [dt.image_id for dt in detections] == [1, 2]
    assert table.bins.tolist() == [list(BOX), [1, 2, 3, 4]]
    assert detections[0].score == pytest.approx(math.exp(-0.5))
    write_records(tmp_path, records, scorer())
    assert '"width": [1.0, 1.0, 1.0, 1.0]' in (tmp_path / "objects.jsonl").read_text()
