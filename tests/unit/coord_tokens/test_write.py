"""Targets: order, cap, and the exact tokens of a sequence."""

import pytest
import torch

from coordexp.coord_tokens.grammar.write import cap_objects, encode_target, order_objects, text_encoder
from coordexp.coord_tokens.layout import parse_targets
from coordexp.data.sample import DetectionObject
from coordexp.errors import DataError


def thing(desc, *box):
    return DetectionObject(desc, box)


def test_order_is_y1_then_x1_then_the_original_index():
    objects = [
        thing("d", 0.1, 0.5, 0.9, 0.9),
        thing("b", 0.2, 0.1, 0.3, 0.3),
        thing("a", 0.1, 0.1, 0.9, 0.2),
        thing("c1", 0.2, 0.3, 0.9, 0.9),
        thing("c2", 0.2, 0.3, 0.4, 0.4),
    ]
    assert [item.desc for item in order_objects(objects)] == ["a", "b", "c1", "c2", "d"]
    assert [item.desc for item in order_objects(objects[::-1])] == ["a", "b", "c2", "c1", "d"]


def test_random_order_depends_on_all_of_the_seed():
    objects = [thing(str(i), 0, i / 20, 1, 1) for i in range(20)]
    orders = {
        tuple(item.desc for item in order_objects(objects, ordering="random", seed=seed))
        for seed in [(0, 0, 5), (0, 0, 5), (1, 0, 5), (0, 1, 5), (0, 0, 6)]
    }
    assert len(orders) == 4
    assert all(sorted(order, key=int) == [str(i) for i in range(20)] for order in orders)


def test_the_cap_keeps_the_largest_in_their_given_order():
    objects = [
        thing("small", 0, 0, 0.1, 0.1),
        thing("large", 0, 0, 0.9, 0.9),
        thing("equal 1", 0, 0, 0.5, 0.2),
        thing("equal 2", 0, 0, 0.5, 0.2),
        thing("middle", 0, 0, 0.5, 0.5),
    ]
    assert [item.desc for item in cap_objects(objects, 3)] == ["large", "equal 1", "middle"]
    assert cap_objects(objects, 5) == objects
    assert cap_objects([], 1) == []


def test_a_native_target_is_what_the_tokenizer_makes_of_its_text(native, encode_text):
    tokenizer, vocab = native
    objects = [thing("red circle", 0.0, 0.1, 0.5, 1.0), thing("traffic light", 0.2514, 0.3, 0.4, 0.9996)]
    target = encode_target(objects, vocab, encode_text)
    text = (
        "<|object_ref_start|>red circle<|box_start|><|coord_0|><|coord_100|><|coord_500|><|coord_999|><|box_end|>"
        "<|object_ref_start|>traffic light<|box_start|><|coord_251|><|coord_300|><|coord_400|><|coord_999|><|box_end|>"
        "<|im_end|>"
    )
    assert target.ids == tokenizer.encode(text, add_special_tokens=False)
    assert target.boxes_norm_xyxy == [(0.0, 0.1, 0.5, 1.0), (0.2514, 0.3, 0.4, 0.9996)]  # not quantised


def test_a_spec_target(spec):
    tokenizer, vocab = spec
    target = encode_target([thing("red circle", 0.0, 0.1, 0.5, 1.0)], vocab, text_encoder(tokenizer))
    text = "<obj_start>red circle<|coord_0|><|coord_100|><|coord_500|><|coord_999|><obj_end><|im_end|>"
    assert target.ids == tokenizer.encode(text, add_special_tokens=False)


def test_no_objects_is_just_the_end(native, encode_text):
    assert encode_target([], native[1], encode_text).ids == [native[1].end_id]


@pytest.mark.parametrize("desc", ["猫", "e\u0301té", "🐈‍⬛ cat", "a\nb", " padded ", "x" * 500, "<box>", "\u202eright"])
@pytest.mark.parametrize("structure", ["native", "spec"])
def test_odd_descriptions_stay_inside_their_object(desc, structure, request):
    tokenizer, vocab = request.getfixturevalue(structure)
    target = encode_target([thing(desc, 0, 0, 1, 1), thing("cat", 0, 0, 1, 1)], vocab, text_encoder(tokenizer))
    ids = torch.tensor(target.ids)
    layout = parse_targets(ids, vocab)
    assert len(layout.coord_positions) == 2
    first = ids[layout.desc_positions[layout.desc_object == 0]]
    assert tokenizer.decode(first) == tokenizer.decode(tokenizer.encode(desc))


@pytest.mark.parametrize(
    "token", ["<|box_end|>", "<|im_end|>", "<|coord_5|>", "<|coord_*|>", "<|image_pad|>", "<think>"]
)
def test_a_special_token_in_a_description_is_refused(encode_text, token):
    with pytest.raises(DataError, match=r"a .* b' contains the special token <"):
        encode_text(f"a {token} b")


def test_a_structure_token_of_spec_is_refused(spec):
    with pytest.raises(DataError, match="<obj_end>"):
        text_encoder(spec[0])("cat<obj_end>")


def test_an_empty_description_is_refused(encode_text):
    with pytest.raises(DataError, match="no tokens"):
        encode_text("")
