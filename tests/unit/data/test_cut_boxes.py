"""How many boxes a limit of objects or tokens takes away: equal to what the targets themselves hold."""

import pytest

from coordexp.coord_tokens.grammar.sequence import encode_target, text_encoder
from coordexp.coord_tokens.vocab import text_vocab
from coordexp.data.box_limits.count import over_max_length, over_max_new_tokens, over_max_objects
from coordexp.data.box_limits.cut_boxes import CutBoxes, too_many, unlearnt, unwritten
from coordexp.data.dataset import DetectionDataset
from coordexp.data.sources.coco.source import CocoSource
from coordexp.data.sources.shapes import Shapes, write_shapes


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    root = write_shapes(tmp_path_factory.mktemp("shapes") / "data", Shapes(num_train=24, num_val=1, max_objects=8))
    return CocoSource(root / "instances_train.json", root / "train").read().samples


@pytest.fixture(params=["native", "spec", "digits"])
def tokens(request, native, spec):
    """Tokenizer and vocabulary of both structures, and of coordinates in digits."""
    if request.param == "digits":
        return native[0], text_vocab(native[0])
    return native if request.param == "native" else spec


@pytest.mark.parametrize("ordering", ["top_left", "size", "random"])
@pytest.mark.parametrize("max_objects", [3, 100])
def test_boxes_that_are_never_learnt_are_those_that_no_target_holds(
    samples, tokens, prompt, image_spec, ordering, max_objects
):
    num_boxes = sum(len(sample.objects) for sample in samples)

    def dataset(max_length: int) -> DetectionDataset:
        return DetectionDataset(
            samples=samples, tokenizer=tokens[0], vocab=tokens[1], prompt=prompt, image_spec=image_spec,
            max_objects=max_objects, max_length=max_length, seed=3, ordering=ordering,
        )  # fmt: skip

    whole = dataset(4096)
    assert (over_max_length(whole).num_cut, over_max_length(whole).needed) == (0, max(whole.lengths))
    shortest = 1 + max(len(prompt) + image_spec.num_tokens(width=one.width, height=one.height) for one in samples)
    numbers_cut = set()
    for max_length in range(shortest, max(whole.lengths) + 1, 4):
        short = dataset(max_length)
        capped, cut = over_max_objects(samples, max_objects), over_max_length(short)
        num_learnt = sum(len(short[index].boxes_norm_xyxy) for index in range(len(short)))
        assert num_boxes - num_learnt == capped.num_cut + cut.num_cut
        assert capped.num_boxes == cut.num_boxes == num_boxes
        assert cut.needed == max(whole.lengths), "the key has to be raised to what the whole targets need"
        numbers_cut.add(cut.num_cut)
    assert len(numbers_cut) > 3
    assert (capped.num_cut > 0) == (max_objects == 3)
    assert capped.needed == max(len(sample.objects) for sample in samples)


@pytest.mark.parametrize("ordering", ["top_left", "random"])
def test_boxes_that_are_never_written_lie_beyond_an_answer_of_that_length(samples, tokens, ordering):
    tokenizer, vocab = tokens
    encode = text_encoder(tokenizer)
    answers = []
    for sample in samples:
        objects = sample.objects.ordered(ordering, seed=(5, 0, sample.image_id))
        answers.append(encode_target(objects.descs, objects.boxes_norm_xyxy, vocab, encode).ids)
    longest = max(map(len, answers))
    numbers_cut = set()
    for limit in range(1, longest + 2, 5):
        found = over_max_new_tokens(samples, tokenizer, vocab, ordering=ordering, seed=5, limit=limit)
        written = sum(answer[:limit].count(vocab.obj_end_id) for answer in answers)
        assert found.num_boxes - found.num_cut == written
        assert found.needed == longest
        numbers_cut.add(found.num_cut)
    assert min(numbers_cut) == 0
    assert max(numbers_cut) == sum(len(sample.objects) for sample in samples)


def test_digits_take_more_tokens_than_coord_tokens(samples, native):
    limits = {"ordering": "top_left", "seed": 0, "limit": 60}
    in_tokens = over_max_new_tokens(samples, native[0], native[1], **limits)
    in_digits = over_max_new_tokens(samples, native[0], text_vocab(native[0]), **limits)
    assert in_digits.num_cut > in_tokens.num_cut
    # 11 more tokens for each box: 12 digits and 3 spaces for 4 coord tokens.
    assert in_digits.needed - in_tokens.needed == 11 * max(len(sample.objects) for sample in samples)


def test_a_warning_names_the_key_and_what_it_has_to_be():
    few = CutBoxes("data.max_length", 512, num_cut=5, num_boxes=100, needed=600)
    many = CutBoxes("data.max_length", 512, num_cut=6, num_boxes=100, needed=600)
    none = CutBoxes("data.max_objects", 30, num_cut=0, num_boxes=100, needed=12)
    capped = CutBoxes("data.max_objects", 30, num_cut=4, num_boxes=100, needed=44)
    assert [too_many([few, none]), too_many([many, none]), too_many([few, capped])] == [False, True, True]
    said = unlearnt([many, none])
    assert "6 of 100" in said
    assert "6.0 %" in said
    assert "data.max_length" in said
    assert "600" in said
    assert "max_objects" not in said
    assert "44" in unlearnt([few, capped])
    assert unlearnt([none]) == ""
    assert too_many([CutBoxes("data.max_length", 512, num_cut=0, num_boxes=0, needed=9)]) is False
    assert "evaluation.max_new_tokens" in unwritten(CutBoxes("evaluation.max_new_tokens", 9, 1, 2))
