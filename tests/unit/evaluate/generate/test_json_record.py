"""An answer in JSON becomes the record of its image, and every number finds the tokens that wrote it."""

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordexp.detection.categories import CategoryIndex
from coordexp.evaluate.generate.generation import GeneratedSequence
from coordexp.evaluate.generate.json_record import JsonParser, seem_in_pixels
from coordexp.evaluate.objects import ImageLine, ObjectTable
from coordexp.metrics import BOX_KINDS
from coordexp.model.tiny.parts import build_tokenizer
from tests.unit.evaluate.evaluate_support import item
from tests.unit.model.real_vocabulary import build_qwen_tokenizer

Build = Callable[..., GeneratedSequence]
TOKENIZER = build_tokenizer()
PARSER = JsonParser(TOKENIZER, categories=CategoryIndex({1: "red circle", 7: "crème brûlée"}), score="coord_desc")
ANSWER = (
    '```json\n[\n\t{"bbox_2d": [12, 345, 6, 1000], "label": "red circle"},\n'
    '\t{"bbox_2d": [0, 1, 2, 3], "label": "Crème brûlée"},\n\t{"bbox_2d": [4, 5, 6, 7], "label": "词🍮"}\n]\n```'
)


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def test_boxes_are_what_the_model_said(sequence: Build) -> None:
    found = PARSER.record(sequence(ids_of(ANSWER)))
    assert [(item.desc, item.category_id, item.bins) for item in found.objects] == [
        ("red circle", 1, (12, 345, 6, 1000)),
        ("Crème brûlée", 7, (0, 1, 2, 3)),
        ("词🍮", None, (4, 5, 6, 7)),
    ]
    assert (found.failures, found.truncated, found.coord_mass, found.curves) == ((), False, (), None)
    first, second = ObjectTable.of([found]).boxes_norm_xyxy("argmax").tolist()
    assert first == [0.012, 0.345, 0.006, 1.0], "1000 is the border itself, which no bin is"
    assert second == [0.0, 0.001, 0.002, 0.003]
    detections = [ObjectTable.of([found]).detections(kind, {1: (640, 480)}) for kind in BOX_KINDS]
    assert detections[0].boxes_px_xywh.tolist() == detections[1].boxes_px_xywh.tolist()
    assert detections[0].boxes_px_xywh[0].tolist() == pytest.approx([3.84, 165.6, 3.84, 314.4])


def test_a_score_by_hand(sequence: Build) -> None:
    text = '[{"bbox_2d": [12, 3, 456, 7], "label": "red circle"}]'
    ids = ids_of(text)
    tokens = [TOKENIZER.decode([token]) for token in ids]
    assert tokens[-5:] == ["red", " circle", '"', "}", "]"]
    places: dict[str, list[int]] = {digits: [] for digits in ("12", "3", "456", "7")}
    at = tokens.index("1")
    for digits in places:
        assert "".join(tokens[at : at + len(digits)]) == digits
        places[digits] = list(range(at, at + len(digits)))
        at += len(digits) + 2  # a comma and a space
    # The fixture's log probabilities are -0.01 x position: those of a number's digits add up.
    coords = [-0.01 * sum(numbers) for numbers in places.values()]
    desc = -0.01 * (len(ids) - 5 + len(ids) - 4) / 2
    expected = 0.7 * math.exp(sum(coords) / 4) + 0.3 * math.exp(desc)
    (item,) = PARSER.record(sequence(ids)).objects
    assert item.score == pytest.approx(expected, rel=1e-12)
    constant = JsonParser(TOKENIZER, categories=CategoryIndex({1: "cat"}), score="constant")
    assert constant.record(sequence(ids)).objects[0].score == 1.0


def test_failures_and_the_cut_are_kept(sequence: Build) -> None:
    found = PARSER.record(sequence(ids_of(ANSWER)[:-12], truncated=True))
    assert len(found.objects) == 2
    assert (found.failures, found.truncated) == (("cut_off",), True)
    assert PARSER.record(sequence([])).failures == ("no_json",)


def test_the_prompt_may_open_a_models_reasoning(sequence: Build) -> None:
    parser = JsonParser(TOKENIZER, categories=CategoryIndex({1: "cat"}), score="coord", thinks=True)
    assert parser.record(sequence(ids_of(f"first {ANSWER}"))).failures == ("cut_off",)
    assert len(parser.record(sequence(ids_of(f"first {ANSWER}</think>{ANSWER}"))).objects) == 3


@given(st.lists(st.integers(0, len(TOKENIZER) + 3), max_size=40))
def test_any_ids_decode_as_the_tokenizer_decodes_them(ids: list[int]) -> None:
    written = PARSER.written(ids)
    assert written.text == TOKENIZER.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert len(written.starts) == len(written.stops) == len(ids)


@given(st.text(max_size=30).filter(lambda text: "\ufffd" not in text))
def test_every_character_has_the_tokens_that_write_it(label: str) -> None:
    ids = ids_of(json.dumps({"label": label}, ensure_ascii=False))
    written = PARSER.written(ids)

    def complete(count: int) -> int:
        """How many characters the first tokens write to their end."""
        return len(TOKENIZER.decode(ids[:count], clean_up_tokenization_spaces=False).rstrip("\ufffd"))

    for at in range(len(written.text)):
        tokens = written.tokens(slice(at, at + 1))
        assert complete(tokens.start) <= at < complete(tokens.stop)
        assert complete(tokens.stop - 1) <= at, "the last of them is needed"
        before = TOKENIZER.decode(ids[: tokens.start], clean_up_tokenization_spaces=False)
        assert not before.endswith("\ufffd"), "no token before them has begun it"


def test_the_true_vocabulary(sequence: Build) -> None:
    tokenizer = build_qwen_tokenizer()
    parser = JsonParser(tokenizer, categories=CategoryIndex({1: "red circle"}), score="coord")
    rng = np.random.default_rng(0)
    answer = tokenizer.encode(ANSWER, add_special_tokens=False)
    for ids in (answer, rng.integers(0, len(tokenizer) + 200, 2000).tolist()):
        written = parser.written(ids)
        assert written.text == tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    found = parser.record(sequence(answer)).objects
    assert [item.desc for item in found] == ["red circle", "Crème brûlée", "词🍮"]
    # A digit is a token of its own: none of these is shared with a comma, a space or another number.
    written = parser.written(answer)
    start = written.text.index("12, 345")
    numbers = [written.tokens(slice(start + at, start + at + size)) for at, size in ((0, 2), (4, 3), (9, 1), (12, 4))]
    assert [tokenizer.decode(answer[place]) for place in numbers] == ["12", "345", "6", "1000"]
    log_probs = sequence(answer).statistics.log_probs
    expected = math.exp(sum(sum(log_probs[place]) for place in numbers) / 4)
    assert found[0].score == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("size", "corner", "count", "expected"),
    [
        ((640, 480), (640, 480), 10, True),
        ((640, 480), (640, 480), 9, False),  # too few to say
        ((640, 480), (641, 480), 10, False),
        ((640, 480), (640, 481), 10, False),
        ((1280, 720), (1000, 700), 10, False),  # thousandths of a large image are all legal pixels
    ],
)
def test_pixels_are_recognised(size: tuple, corner: tuple, count: int, expected: bool) -> None:
    boxes = [item(bins=(10, 20, 30, 40))] * (count - 1) + [item(bins=(0, 0, *corner))]
    assert seem_in_pixels([ImageLine(1, tuple(boxes), (), truncated=False)], {1: size}) is expected
