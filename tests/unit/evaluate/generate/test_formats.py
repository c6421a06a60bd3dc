"""A generated answer becomes columns: every object with its own numbers and its score."""

import json
import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordexp.config.schema.evaluation import ScoreName
from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.vocab import text_vocab
from coordexp.data.images.patches import ImageSpec
from coordexp.detection.names.categories import CategoryIndex
from coordexp.evaluate.answers import ReadAnswer, read_answer, score_of, seem_in_pixels
from coordexp.evaluate.generate.answer import Answer
from coordexp.evaluate.generate.formats import SequenceFormat, WrittenObject
from coordexp.evaluate.generate.model import AnswerFormat
from coordexp.evaluate.generate.qwen_json import JsonFormat
from coordexp.metrics import BOX_KINDS
from coordexp.model.tiny.parts import build_image_processor, build_tokenizer
from tests.support.evaluation import Item, objects_of
from tests.support.model_fixtures import answer_of
from tests.support.real_vocabulary import build_qwen_tokenizer

TOKENIZER = build_tokenizer()
JSON = JsonFormat(TOKENIZER)
CATEGORIES = CategoryIndex({1: "red circle", 7: "cat", 8: "boeing 747", 9: "crème brûlée"})


def read(form: AnswerFormat, answer: Answer, *, score: ScoreName = "coord_desc") -> ReadAnswer:
    return read_answer(answer, form, size_px=(640, 480), categories=CATEGORIES, score=score)


def told(found: ReadAnswer) -> list[tuple]:
    objects = found.objects
    ids = [key if known else None for key, known in zip(objects.category_ids, objects.is_known, strict=True)]
    return list(zip(objects.descs, ids, map(tuple, objects.bins.tolist()), strict=True))


def written(base, desc: str, bins: list[int]) -> list[int]:
    vocab = base.vocab
    text = base.tokenizer.encode(desc, add_special_tokens=False)
    return [vocab.obj_start_id, *text, vocab.box_start_id, *[vocab.coord_ids.start + k for k in bins], vocab.obj_end_id]


def test_an_object_carries_the_numbers_of_its_own_tokens(native) -> None:
    first, second = written(native, " CAT", [10, 20, 30, 40]), written(native, "dog", [5, 6, 7, 8])
    ids = [*first, *second, *first[:-1]]
    probs = np.zeros((len(ids), NUM_BINS), np.float32)
    probs[np.arange(len(ids)), np.arange(len(ids)) * 5] = 1.0
    found = read(SequenceFormat(native.vocab, native.tokenizer), answer_of(ids, truncated=True, probs_TK=probs))
    assert told(found) == [(" CAT", 7, (10, 20, 30, 40)), ("dog", None, (5, 6, 7, 8))]
    at = len(first) - 5  # the first coord token; the fixture's numbers are their position
    assert found.objects.expected[0] == pytest.approx([0.001 * (at + n) for n in range(4)])
    assert found.objects.width[0] == pytest.approx([10.0 + at + n for n in range(4)])
    coord, desc = -0.01 * np.mean([at + n for n in range(4)]), -0.01 * np.mean(range(1, at - 1))
    assert found.objects.scores[0] == pytest.approx(0.7 * math.exp(coord) + 0.3 * math.exp(desc))
    assert (found.failures, found.truncated) == (("unclosed",), True)
    places = [at + n for n in range(4)] + [len(first) + len(second) - 5 + n for n in range(4)]
    places += [len(first) + len(second) + at + n for n in range(4)]  # also of the piece that is no object
    assert found.coord_mass == pytest.approx([0.5 + 0.01 * place for place in places])
    assert [[curve.start for curve in curves] for curves in found.curves] == [
        [5 * place for place in places[start : start + 4]] for start in (0, 4)
    ]


@pytest.mark.parametrize(
    ("name", "expected"), [("coord", 0.25), ("desc", 0.6), ("coord_desc", 0.7 * 0.25 + 0.3 * 0.6), ("constant", 1.0)]
)
def test_scores_by_hand(name: ScoreName, expected: float) -> None:
    # Coord probabilities .5 .5 .125 and .5 x .25: geometric mean .25; description .9 .4: geometric mean .6.
    log_probs = np.log([0.9, 0.4, 0.5, 0.5, 0.125, 0.5, 0.25])
    numbers = [slice(2, 3), slice(3, 4), slice(4, 5), slice(5, 7)]
    found = score_of(name, log_probs, WrittenObject("a b", (1, 2, 3, 4), slice(0, 2), numbers))
    assert found == pytest.approx(expected, rel=1e-12)
    assert name in get_args(ScoreName)


def test_a_coordinate_in_digits_has_the_probability_of_all_its_digits() -> None:
    """The fixture's log probability is -.01 x position; a number of two digits, and digits in the description."""
    ids = TOKENIZER.encode("<|object_ref_start|>boeing 747<|box_start|>034 34 560 780<|box_end|>")
    found = read(SequenceFormat(text_vocab(TOKENIZER), TOKENIZER), answer_of(ids), score="coord")
    assert told(found) == [("boeing 747", 8, (34, 34, 560, 780))]
    assert found.objects.expected.tolist() == [[0.034, 0.034, 0.56, 0.78]]
    assert not found.objects.width.any()
    box = ids.index(TOKENIZER.get_vocab()["<|box_start|>"]) + 1
    places = [[box, box + 1, box + 2], [box + 4, box + 5], [box + 7, box + 8, box + 9], [box + 11, box + 12, box + 13]]
    products = [math.exp(-0.01 * sum(number)) for number in places]
    assert found.objects.scores[0] == pytest.approx(math.prod(products) ** 0.25)
    assert found.coord_mass == pytest.approx([0.5 + 0.01 * place for number in places for place in number])
    assert found.curves is None


# Answers in JSON

ANSWER = (
    '```json\n[\n\t{"bbox_2d": [12, 345, 6, 1000], "label": "red circle"},\n'
    '\t{"bbox_2d": [0, 1, 2, 3], "label": "Crème brûlée"},\n\t{"bbox_2d": [4, 5, 6, 7], "label": "词🍮"}\n]\n```'
)


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def test_boxes_are_what_the_model_said() -> None:
    found = read(JSON, answer_of(ids_of(ANSWER)))
    assert told(found) == [
        ("red circle", 1, (12, 345, 6, 1000)),
        ("Crème brûlée", 9, (0, 1, 2, 3)),
        ("词🍮", None, (4, 5, 6, 7)),
    ]
    assert (len(found.failures), len(found.coord_mass), found.curves) == (0, 0, None)
    assert found.objects.expected[0].tolist() == [0.012, 0.345, 0.006, 1.0], "1000 is the border itself, as no bin is"
    detections = [found.objects.detections(kind, {1: (640, 480)}).boxes_px_xywh for kind in BOX_KINDS]
    assert detections[0].tolist() == detections[1].tolist()
    assert detections[0][0].tolist() == pytest.approx([3.84, 165.6, 3.84, 314.4])
    cut = read(JSON, answer_of(ids_of(ANSWER)[:-12], truncated=True))
    assert (len(cut.objects), [*cut.failures]) == (2, ["cut_off"])
    assert [*read(JSON, answer_of([])).failures] == ["no_json"]
    thinks = JsonFormat(TOKENIZER, thinks=True)
    assert [*read(thinks, answer_of(ids_of(f"first {ANSWER}"))).failures] == ["cut_off"]
    assert len(read(thinks, answer_of(ids_of(f"first {ANSWER}</think>{ANSWER}"))).objects) == 3


def test_a_score_of_json_by_hand() -> None:
    ids = ids_of('[{"bbox_2d": [12, 3, 456, 7], "label": "red circle"}]')
    tokens = [TOKENIZER.decode([token]) for token in ids]
    assert tokens[-5:] == ["red", " circle", '"', "}", "]"]
    at, coords = tokens.index("1"), []
    for digits in ("12", "3", "456", "7"):
        assert "".join(tokens[at : at + len(digits)]) == digits
        coords.append(-0.01 * sum(range(at, at + len(digits))))  # those of a number's digits add up
        at += len(digits) + 2  # a comma and a space
    desc = -0.01 * (len(ids) - 5 + len(ids) - 4) / 2
    (score,) = read(JSON, answer_of(ids)).objects.scores
    assert score == pytest.approx(0.7 * math.exp(sum(coords) / 4) + 0.3 * math.exp(desc), rel=1e-12)


@given(st.lists(st.integers(0, len(TOKENIZER) + 3), max_size=40))
def test_any_ids_decode_as_the_tokenizer_decodes_them(ids: list[int]) -> None:
    text = JSON.written(ids)
    assert text.text == TOKENIZER.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert len(text.starts) == len(text.stops) == len(ids)


@given(st.text(max_size=30).filter(lambda text: "\ufffd" not in text))
def test_every_character_has_the_tokens_that_write_it(label: str) -> None:
    ids = ids_of(json.dumps({"label": label}, ensure_ascii=False))
    text = JSON.written(ids)

    def complete(count: int) -> int:
        """How many characters the first tokens write to their end."""
        return len(TOKENIZER.decode(ids[:count], clean_up_tokenization_spaces=False).rstrip("\ufffd"))

    for at in range(len(text.text)):
        tokens = text.tokens(slice(at, at + 1))
        assert complete(tokens.start) <= at < complete(tokens.stop)
        assert complete(tokens.stop - 1) <= at, "the last of them is needed"
        before = TOKENIZER.decode(ids[: tokens.start], clean_up_tokenization_spaces=False)
        assert not before.endswith("\ufffd"), "no token before them has begun it"


@pytest.mark.slow  # 150,000 entries; the small tokenizer above is byte-level, too
def test_the_true_vocabulary() -> None:
    tokenizer = build_qwen_tokenizer()
    form, rng = JsonFormat(tokenizer), np.random.default_rng(0)
    answer = tokenizer.encode(ANSWER, add_special_tokens=False)
    for ids in (answer, rng.integers(0, len(tokenizer) + 200, 2000).tolist()):
        text = form.written(ids).text
        assert text == tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    first, *_ = form.read(answer, (640, 480))[0]
    # A digit is a token of its own: none of these is shared with a comma, a space or another number.
    assert [tokenizer.decode(answer[place]) for place in first.numbers] == ["12", "345", "6", "1000"]
    assert tokenizer.decode(answer[first.words]) == "red circle"


def test_pixels_of_the_resized_picture_become_thousandths() -> None:
    form = JsonFormat(TOKENIZER, pixels_of=ImageSpec.from_processor(build_image_processor(), max_pixels=64 * 48))
    inside = '{"bbox_2d": [0, 12, 32, 48], "label": "cat"}'
    outside = '{"bbox_2d": [0, 12, 65, 48], "label": "cat"}'  # the picture became 64 x 48
    answer = answer_of(TOKENIZER.encode(f"[{inside}, {outside}]", add_special_tokens=False))
    found = read(form, answer)
    assert told(found) == [("cat", 7, (0, 250, 500, 1000))]
    assert found.objects.expected[0].tolist() == [0.0, 0.25, 0.5, 1.0]
    assert found.failures == ["coord_out_of_range"]
    assert told(read(JSON, answer)) == [("cat", 7, (0, 12, 32, 48)), ("cat", 7, (0, 12, 65, 48))]


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
    boxes = [Item(bins=(10, 20, 30, 40))] * (count - 1) + [Item(bins=(0, 0, *corner))]
    found = objects_of({1: boxes}).detections("argmax", {1: size})
    assert seem_in_pixels(found, {1: size}) is expected
