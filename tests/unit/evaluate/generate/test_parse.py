"""A generated sequence becomes the record of its image: every object with its own numbers and its score."""

import math
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest

from coordexp.config.schema.evaluation import ScoreName
from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.vocab import text_vocab
from coordexp.detection.categories import CategoryIndex
from coordexp.evaluate.generate.generation import GeneratedSequence
from coordexp.evaluate.generate.parse import SCORES, SequenceParser
from coordexp.model.tiny.parts import build_tokenizer

Build = Callable[..., GeneratedSequence]


@pytest.fixture
def parser(native) -> SequenceParser:
    categories = CategoryIndex({1: "red circle", 7: "cat"})
    return SequenceParser(native.vocab, native.tokenizer, categories=categories, score="coord_desc")


def written(base, desc: str, bins: list[int]) -> list[int]:
    vocab = base.vocab
    text = base.tokenizer.encode(desc, add_special_tokens=False)
    coords = [vocab.coord_ids.start + k for k in bins]
    return [vocab.obj_start_id, *text, vocab.box_start_id, *coords, vocab.obj_end_id]


def test_an_object_carries_the_numbers_of_its_own_tokens(native, parser: SequenceParser, sequence: Build) -> None:
    first = written(native, " CAT", [10, 20, 30, 40])
    second = written(native, "dog", [5, 6, 7, 8])
    found = parser.record(sequence([*first, *second]))
    cat, dog = found.objects
    assert (cat.desc, cat.category_id, cat.bins) == (" CAT", 7, (10, 20, 30, 40))
    assert (dog.desc, dog.category_id, dog.bins) == ("dog", None, (5, 6, 7, 8))
    at = len(first) - 5  # the first coord token; the fixture's numbers are their position
    assert cat.expected == pytest.approx([0.001 * (at + n) for n in range(4)])
    assert cat.width == pytest.approx([10.0 + at + n for n in range(4)])
    coord = -0.01 * np.mean([at + n for n in range(4)])
    desc = -0.01 * np.mean(range(1, at - 1))
    assert cat.score == pytest.approx(0.7 * math.exp(coord) + 0.3 * math.exp(desc))
    assert (found.failures, found.truncated, found.curves) == ((), False, None)
    places = [at + n for n in range(4)] + [len(first) + len(second) - 5 + n for n in range(4)]
    assert found.coord_mass == pytest.approx([0.5 + 0.01 * place for place in places])


def test_curves_lie_at_the_emitted_positions(native, parser: SequenceParser, sequence: Build) -> None:
    ids = [token for _ in range(6) for token in written(native, "cat", [1, 2, 3, 4])]
    seq = sequence(ids)
    probs = np.zeros((len(ids), NUM_BINS), np.float32)
    probs[np.arange(len(ids)), np.arange(len(ids)) * 5] = 1.0
    curves = parser.record(GeneratedSequence(**{**vars(seq), "coord_probs": probs})).curves
    each = len(ids) // 6
    assert len(curves) == 6
    for number, item in enumerate(curves):
        first = number * each + each - 5
        assert [curve.start for curve in item.curves] == [5 * (first + n) for n in range(4)]
        assert (item.desc, item.bins) == ("cat", (1, 2, 3, 4))


def test_malformed_pieces_are_kept_by_kind(native, parser: SequenceParser, sequence: Build) -> None:
    good = written(native, "cat", [1, 2, 3, 4])
    found = parser.record(sequence([*good, *good[:-1]], truncated=True))
    assert (len(found.objects), found.failures, found.truncated) == (1, ("unclosed",), True)


@pytest.mark.parametrize(
    ("name", "expected"), [("coord", 0.25), ("desc", 0.6), ("coord_desc", 0.7 * 0.25 + 0.3 * 0.6), ("constant", 1.0)]
)
def test_scores_by_hand(name: ScoreName, expected: float) -> None:
    # Coord probabilities .5 .5 .125 .125: geometric mean .25; description .9 .4: geometric mean .6.
    coord, desc = (tuple(math.log(p) for p in values) for values in ((0.5, 0.5, 0.125, 0.125), (0.9, 0.4)))
    assert SCORES[name](coord, desc) == pytest.approx(expected, rel=1e-12)


def test_every_score_of_the_configuration_can_be_computed() -> None:
    assert set(SCORES) == set(get_args(ScoreName))


# The text arm


@pytest.fixture
def digits() -> SequenceParser:
    tokenizer = build_tokenizer()
    categories = CategoryIndex({7: "boeing 747"})
    return SequenceParser(text_vocab(tokenizer), tokenizer, categories=categories, score="coord")


def test_a_coordinate_in_digits_has_the_probability_of_all_its_digits(digits: SequenceParser, sequence: Build) -> None:
    """The fixture's log probability is -.01 x position; a number of two digits, and digits in the description."""
    tokenizer = build_tokenizer()
    ids = tokenizer.encode("<|object_ref_start|>boeing 747<|box_start|>034 34 560 780<|box_end|>")
    (item,) = digits.record(sequence(ids)).objects
    assert (item.desc, item.category_id, item.bins) == ("boeing 747", 7, (34, 34, 560, 780))
    assert item.expected == (0.034, 0.034, 0.56, 0.78)
    assert item.width == (0, 0, 0, 0)
    box = ids.index(tokenizer.get_vocab()["<|box_start|>"]) + 1
    places = [[box, box + 1, box + 2], [box + 4, box + 5], [box + 7, box + 8, box + 9], [box + 11, box + 12, box + 13]]
    products = [math.exp(-0.01 * sum(number)) for number in places]
    assert item.score == pytest.approx(math.prod(products) ** 0.25)
    record = digits.record(sequence(ids))
    assert record.coord_mass == pytest.approx([0.5 + 0.01 * place for number in places for place in number])
    assert record.num_tokens == len(ids)
    assert record.curves is None


def test_malformed_digits_are_kept_by_kind(digits: SequenceParser, sequence: Build) -> None:
    boxes = ["034 340 560", "034 340 560 780 900", "034 340 560 1780", "034, 340 560 780", "thirty 340 560 780"]
    text = "".join(f"<|object_ref_start|>cat<|box_start|>{box}<|box_end|>" for box in boxes)
    found = digits.record(sequence(build_tokenizer().encode(text)))
    assert found.objects == ()
    assert found.failures == (
        "too_few_coords", "too_many_coords", "number_out_of_range", "unexpected_token", "unexpected_token",
    )  # fmt: skip
