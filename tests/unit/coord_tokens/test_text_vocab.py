"""The vocabulary of the text arm: what it writes is what the tokenizer itself makes of the text."""

import numpy as np
import pytest
import torch
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

from coordexp.coord_tokens.codec import encode
from coordexp.coord_tokens.grammar.sequence import encode_target, target_length, text_encoder
from coordexp.coord_tokens.layout import parse_targets
from coordexp.coord_tokens.vocab import NumberTokens, text_vocab
from coordexp.errors import TokenizerError
from coordexp.model.tiny.parts import build_tokenizer
from tests.support.real_vocabulary import build_qwen_tokenizer

DESCS = ["red circle", "boeing 747", " 12 7 "]
BOXES = np.array([(0.0, 0.034, 0.5, 0.9996), (0.2514, 0.3, 0.4, 1.0), (0.007, 0.07, 0.7, 0.77)])
NUMBERS = ["000 034 500 999", "251 300 400 999", "007 070 700 770"]


@pytest.fixture(scope="module", params=["embedded", "published"])
def tokenizer(request):
    return build_tokenizer() if request.param == "embedded" else build_qwen_tokenizer()


def test_digits_in_another_order_and_a_space_of_two_tokens_are_refused(tokenizer, monkeypatch):
    monkeypatch.setattr("coordexp.coord_tokens.vocab.digit_ids", lambda _: [*range(1, 10), 0])
    with pytest.raises(TokenizerError, match=r"\[1, 2, .*9, 0\]"):
        text_vocab(tokenizer)
    monkeypatch.setattr("coordexp.coord_tokens.vocab.digit_ids", lambda _: list(range(10)))
    monkeypatch.setattr(tokenizer, "encode", lambda *_, **__: [1, 2])
    with pytest.raises(TokenizerError, match="space.*2 tokens"):
        text_vocab(tokenizer)


def test_a_written_target_is_what_the_tokenizer_makes_of_its_text(tokenizer):
    vocab = text_vocab(tokenizer)
    target = encode_target(DESCS, BOXES, vocab, text_encoder(tokenizer))
    text = "".join(
        f"<|object_ref_start|>{desc}<|box_start|>{numbers}<|box_end|>"
        for desc, numbers in zip(DESCS, NUMBERS, strict=True)
    )
    assert target.ids == tokenizer.encode(text + "<|im_end|>", add_special_tokens=False)
    lengths = [len(tokenizer.encode(desc, add_special_tokens=False)) for desc in DESCS]
    assert len(target.ids) == target_length(lengths, vocab.structure, num_box_tokens=vocab.numbers.num_box_tokens)
    ids = torch.tensor(target.ids)
    assert vocab.numbers.bins(ids[torch.from_numpy(target.coord_positions)]).tolist() == encode(BOXES).tolist()
    assert len(tokenizer) == len(tokenizer.get_vocab())  # nothing was added


def test_the_parts_are_found_again_and_digits_of_a_description_are_text(tokenizer):
    vocab = text_vocab(tokenizer)
    target = encode_target(DESCS, BOXES, vocab, text_encoder(tokenizer))
    ids = torch.tensor(target.ids)
    layout = parse_targets(ids, vocab)
    assert torch.equal(layout.coord_positions, torch.from_numpy(target.coord_positions))
    for number, desc in enumerate(DESCS):
        assert tokenizer.decode(ids[layout.desc_positions[layout.desc_object == number]]) == desc
    assert len(layout.object_spans) == 3


def test_wherever_a_target_is_cut_its_coordinates_are_known():
    tokenizer = build_tokenizer()
    vocab = text_vocab(tokenizer)
    whole = encode_target(DESCS, BOXES, vocab, text_encoder(tokenizer))
    for room in range(len(whole.ids) + 1):
        cut = encode_target(DESCS, BOXES, vocab, text_encoder(tokenizer), room=room)
        assert cut.ids == whole.ids[:room]
        known = [*cut.coord_positions.ravel().tolist(), *cut.cut_positions.tolist()]
        assert known == [at for at in whole.coord_positions.ravel().tolist() if at < room]
        complete = parse_targets(torch.tensor(cut.ids, dtype=torch.int64), vocab).coord_positions
        assert torch.equal(complete, torch.from_numpy(cut.coord_positions).view(-1, 12))
    assert encode_target([], np.zeros((0, 4)), vocab, text_encoder(tokenizer)).coord_positions.shape == (0, 12)


def test_a_box_is_written_and_read_back():
    bins = np.array([(0, 34, 340, 999), (1, 20, 300, 998)])
    digits, coords = NumberTokens(range(50, 60), 3, 7), NumberTokens(range(100, 1100))
    assert digits.write(bins)[0].tolist() == [50, 50, 50, 7, 50, 53, 54, 7, 53, 54, 50, 7, 59, 59, 59]
    assert coords.write(bins)[0].tolist() == [100, 134, 440, 1099]
    for numbers in (digits, coords):
        ids = torch.from_numpy(numbers.write(bins)[:, numbers.number_positions])
        assert numbers.bins(ids).tolist() == bins.tolist()
    assert [digits.bin_of(ids) for ids in ([53], [53, 54], [50, 50, 57])] == [3, 34, 7]


def test_digits_that_are_no_row_of_ids_are_refused():
    ids = build_tokenizer().get_vocab()
    swapped = {**ids, "4": ids["5"], "5": ids["4"]}
    with pytest.raises(TokenizerError, match="digits"):
        text_vocab(Qwen2Tokenizer(vocab=swapped, merges=[]))
