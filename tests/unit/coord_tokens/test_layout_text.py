"""Sequence layout of real text: odd Unicode, cuts anywhere, markers that are spelled out."""

import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from coordexp.coord_tokens.codec import ints_to_tokens
from coordexp.coord_tokens.grammar.sequence import encode_target, target_length, text_encoder
from coordexp.coord_tokens.layout import parse_targets
from coordexp.coord_tokens.vocab import coord_vocab
from coordexp.model.tiny.parts import build_tokenizer

# A busy machine is no failure.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class TextVocab:
    """A tokenizer and its ids, with a name short enough for hypothesis to print."""

    def __init__(self, tokenizer, structure):
        self.structure = structure
        self.both = tokenizer, coord_vocab(tokenizer, structure=structure)

    def __repr__(self):
        return f"TextVocab({self.structure})"


@pytest.fixture(scope="module", params=["native", "spec"])
def text_vocab(request):
    tokenizer = build_tokenizer()
    added = ["<|coord_*|>", *ints_to_tokens(range(1000)), *(["<obj_start>", "<obj_end>"] * (request.param == "spec"))]
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in added])
    return TextVocab(tokenizer, request.param)


_ODD = [
    "\N{CAT}\N{ZERO WIDTH JOINER}\N{BLACK LARGE SQUARE} \U0001f1e9\U0001f1ea",
    "e\N{COMBINING ACUTE ACCENT}\N{COMBINING CEDILLA}te\N{COMBINING ACUTE ACCENT}",
    "\N{RIGHT-TO-LEFT OVERRIDE}\u05e9\u05dc\u05d5\u05dd \N{POP DIRECTIONAL FORMATTING}\u0645\u0631\u062d\u0628\u0627",
    "\u0e01\u0e33\u0e41\u0e1e\u0e07 \u4e2d\u6587 \U0001f9d1\u200d\U0001f680",
    "tab\there\nand\u00a0there\u2028\x00",
    "coord_5 <|coord_1000|> <|coord_05|> < |box_start| > <box_start> </s>",
]


def _boxes(number):
    return np.array([(0.001 * i, 0.002 * i, 0.5, 0.5 + 0.01 * i) for i in range(number)]).reshape(-1, 4)


def _parsed_descriptions(ids, found, tokenizer):
    return [tokenizer.decode(ids[found.desc_positions[found.desc_object == i]]) for i in range(len(found.object_spans))]


def test_odd_unicode_stays_in_its_object(text_vocab):
    tokenizer, vocab = text_vocab.both
    boxes = _boxes(len(_ODD))
    target = encode_target(_ODD, boxes, vocab, text_encoder(tokenizer))
    ids = torch.tensor(target.ids)
    found = parse_targets(ids, vocab)
    assert _parsed_descriptions(ids, found, tokenizer) == [unicodedata.normalize("NFC", desc) for desc in _ODD]
    bins = ids[found.coord_positions] - vocab.coord_ids.start
    assert bins.tolist() == [[round(1000 * c) for c in box] for box in boxes.tolist()]
    assert len(tokenizer.encode(_ODD[0])) > 2 * len(_ODD[0])  # a character is several tokens


# Spelled-out special tokens are refused by the encoder, and tested apart; hypothesis does think of them.
_TEXTS = st.text(min_size=1, max_size=12).filter(lambda text: "<" not in text)


@UNHURRIED
@given(descs=st.lists(_TEXTS, max_size=4), data=st.data())
def test_any_text_and_any_cut(text_vocab, descs, data):
    """Whatever the text, a cut at any place keeps exactly the objects that end before it."""
    tokenizer, vocab = text_vocab.both
    encode_text = text_encoder(tokenizer)
    target = encode_target(descs, _boxes(len(descs)), vocab, encode_text)
    room = data.draw(st.integers(0, len(target.ids)))
    cut = encode_target(descs, _boxes(len(descs)), vocab, encode_text, room=room)
    ends, at = [], 0
    for desc in descs:
        at += len(encode_text(desc)) + (7 if vocab.box_start_id is not None else 6)
        ends.append(at)
    assert cut.ids == target.ids[:room]
    found = parse_targets(torch.tensor(cut.ids, dtype=torch.int64), vocab)
    assert cut.coord_positions.tolist() == found.coord_positions.tolist()
    assert len(target.ids) == target_length((len(encode_text(desc)) for desc in descs), vocab.structure)
    num_whole = sum(end <= room for end in ends)
    assert found.object_spans[:, 1].tolist() == ends[:num_whole]
    assert found.object_spans[:, 0].tolist() == [0, *ends][:num_whole]
    assert found.desc_object.tolist().count(-1) == len(found.desc_positions) - sum(
        len(encode_text(desc)) for desc in descs[:num_whole]
    )
