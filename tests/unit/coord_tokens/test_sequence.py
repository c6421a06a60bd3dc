"""Targets: the exact tokens of a sequence."""

import re

import numpy as np
import pytest
import torch

from coordexp.coord_tokens.grammar.sequence import encode_target, text_encoder
from coordexp.coord_tokens.layout import parse_targets
from coordexp.errors import DataError


def test_a_native_target_is_what_the_tokenizer_makes_of_its_text(native, encode_text):
    tokenizer, vocab = native
    boxes = np.array([(0.0, 0.1, 0.5, 1.0), (0.2514, 0.3, 0.4, 0.9996)])
    target = encode_target(["red circle", "traffic light"], boxes, vocab, encode_text)
    text = (
        "<|object_ref_start|>red circle<|box_start|><|coord_0|><|coord_100|><|coord_500|><|coord_999|><|box_end|>"
        "<|object_ref_start|>traffic light<|box_start|><|coord_251|><|coord_300|><|coord_400|><|coord_999|><|box_end|>"
        "<|im_end|>"
    )
    assert target.ids == tokenizer.encode(text, add_special_tokens=False)
    bins = np.array(target.ids)[target.coord_positions] - vocab.coord_ids.start
    assert bins.tolist() == [[0, 100, 500, 999], [251, 300, 400, 999]]


@pytest.mark.parametrize("desc", ["猫", "e\u0301té", "🐈‍⬛ cat", "a\nb", " padded ", "x" * 500, "<box>", "\u202eright"])
@pytest.mark.parametrize("structure", ["native", "spec"])
def test_odd_descriptions_stay_inside_their_object(desc, structure, request):
    tokenizer, vocab = request.getfixturevalue(structure)
    target = encode_target([desc, "cat"], np.array([(0.0, 0.0, 1.0, 1.0)] * 2), vocab, text_encoder(tokenizer))
    ids = torch.tensor(target.ids)
    layout = parse_targets(ids, vocab)
    assert len(layout.coord_positions) == 2
    first = ids[layout.desc_positions[layout.desc_object == 0]]
    assert tokenizer.decode(first) == tokenizer.decode(tokenizer.encode(desc))


@pytest.mark.parametrize(
    "token", ["<|box_end|>", "<|im_end|>", "<|coord_5|>", "<|coord_*|>", "<|image_pad|>", "<think>"]
)
def test_a_special_token_in_a_description_is_refused(encode_text, token):
    with pytest.raises(DataError, match=f"{re.escape(token)}.*{re.escape(token)}"):
        encode_text(f"a {token} b")


def test_an_empty_description_is_refused(encode_text):
    with pytest.raises(DataError, match="''"):
        encode_text("")
