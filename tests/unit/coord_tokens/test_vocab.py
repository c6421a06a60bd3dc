"""Vocabulary expansion on the tiny tokenizer and model: ids, initial rows, and that twice is once."""

import copy

import pytest
import torch

from coordexp.coord_tokens.codec import ints_to_tokens
from coordexp.coord_tokens.vocab import coord_vocab, expand_tokenizer, expand_vocab
from coordexp.errors import TokenizerError
from coordexp.model.tiny.parts import build_model, build_tokenizer


@pytest.fixture(scope="module")
def base():
    tokenizer = build_tokenizer()
    return tokenizer, build_model(tokenizer), build_model(tokenizer, tie_word_embeddings=False)


@pytest.fixture
def tied(base):
    return copy.deepcopy(base[1]), copy.deepcopy(base[0])


@pytest.fixture
def untied(base):
    return copy.deepcopy(base[2]), copy.deepcopy(base[0])


def rows(model):
    return model.get_input_embeddings().weight.detach()


def test_ids_follow_the_old_ones(tied):
    model, tokenizer = tied
    num_before = len(tokenizer)
    vocab = expand_vocab(model, tokenizer)
    assert vocab.wildcard_id == num_before
    assert vocab.coord_ids == range(num_before + 1, num_before + 1001)
    assert tokenizer.convert_ids_to_tokens(list(vocab.coord_ids)) == ints_to_tokens(range(1000))
    markers = [vocab.obj_start_id, vocab.box_start_id, vocab.obj_end_id, vocab.end_id]
    names = ["<|object_ref_start|>", "<|box_start|>", "<|box_end|>", "<|im_end|>"]
    assert tokenizer.convert_ids_to_tokens(markers) == names
    assert vocab.added_structure_ids == ()
    assert len(rows(model)) >= len(tokenizer) == num_before + 1001
    assert model.config.text_config.vocab_size == len(rows(model))
    assert tokenizer.encode("<|coord_*|><|coord_7|><|coord_999|>") == [num_before, num_before + 8, num_before + 1000]


def test_a_table_with_rows_to_spare_keeps_its_size(tied):
    model, tokenizer = tied
    model.resize_token_embeddings(len(tokenizer) + 2000)
    assert expand_vocab(model, tokenizer).wildcard_id + 2000 == len(rows(model))


def test_twice_changes_nothing(tied):
    model, tokenizer = tied
    first = expand_vocab(model, tokenizer, init="numeric")
    with torch.no_grad():
        rows(model)[first.coord_ids.start] = 7.0  # as if trained
    before = rows(model).clone()
    assert expand_vocab(model, tokenizer, init="numeric") == first
    assert torch.equal(rows(model), before)


def test_spec_after_native_keeps_trained_coord_rows(tied):
    model, tokenizer = tied
    first = expand_vocab(model, tokenizer, init="numeric")
    with torch.no_grad():
        rows(model)[first.coord_ids.start : first.coord_ids.stop] = 7.0
    second = expand_vocab(model, tokenizer, init="numeric", structure="spec")
    assert second.coord_ids == first.coord_ids
    assert bool((rows(model)[first.coord_ids.start : first.coord_ids.stop] == 7.0).all())


def test_spec_adds_two_tokens(tied):
    model, tokenizer = tied
    num_before = len(tokenizer)
    vocab = expand_vocab(model, tokenizer, structure="spec")
    assert (vocab.obj_start_id, vocab.obj_end_id) == vocab.added_structure_ids == (num_before + 1001, num_before + 1002)
    assert vocab.box_start_id is None
    assert len(tokenizer) == num_before + 1003


def test_old_rows_stay_and_new_ones_are_their_mean(tied):
    model, tokenizer = tied
    num_before = len(tokenizer)
    old = rows(model)[:num_before].clone()
    expand_vocab(model, tokenizer, init="mean")
    assert torch.equal(rows(model)[:num_before], old)
    new = rows(model)[num_before : len(tokenizer)]
    torch.testing.assert_close(new, old.mean(dim=0).expand_as(new), rtol=0, atol=1e-6)


def test_numeric_rows_lie_between_the_digits(tied):
    model, tokenizer = tied
    digits = [rows(model)[tokenizer.encode(str(d))[0]].clone() for d in range(10)]
    vocab = expand_vocab(model, tokenizer, init="numeric")
    coords = rows(model)[vocab.coord_ids.start : vocab.coord_ids.stop]
    # Digit d sits at bin 100 d + 50; bin 275 is a quarter of the way from 2 to 3; the ends stay flat.
    torch.testing.assert_close(coords[250], digits[2])
    torch.testing.assert_close(coords[275], 0.75 * digits[2] + 0.25 * digits[3])
    torch.testing.assert_close(coords[0], digits[0])
    torch.testing.assert_close(coords[999], digits[9])
    mean = rows(model)[: vocab.wildcard_id].mean(dim=0)
    torch.testing.assert_close(rows(model)[vocab.wildcard_id], mean)


@pytest.mark.parametrize("init", ["mean", "numeric"])
def test_an_untied_head_gets_rows_of_its_own(untied, init):
    model, tokenizer = untied
    head = model.get_output_embeddings().weight
    num_before = len(tokenizer)
    mean = head[:num_before].detach().mean(dim=0).clone()
    vocab = expand_vocab(model, tokenizer, init=init)
    head = model.get_output_embeddings().weight
    assert head is not model.get_input_embeddings().weight
    assert len(head) == len(rows(model))
    torch.testing.assert_close(head[vocab.wildcard_id].detach(), mean)
    assert not torch.equal(head[vocab.coord_ids.start], rows(model)[vocab.coord_ids.start])


def test_missing_tokens_are_named(base):
    with pytest.raises(TokenizerError, match=r"<\|coord_0\|>"):
        coord_vocab(base[0])


@pytest.mark.parametrize(
    ("present", "facts"),
    [
        (["<|coord_0|>"], r"1 of the 1000.*<\|coord_1\|>"),
        (["<obj_end>"], r"1 of the 2.*<obj_start>"),
    ],
)
def test_a_tokenizer_with_some_of_the_tokens_is_refused(base, present, facts):
    tokenizer = copy.deepcopy(base[0])
    tokenizer.add_tokens(present, special_tokens=True)
    num_before = len(tokenizer)
    with pytest.raises(TokenizerError, match=facts):
        expand_tokenizer(tokenizer, structure="spec")
    assert len(tokenizer) == num_before


@pytest.mark.parametrize(("structure", "added"), [("native", 1), ("spec", 3)])
def test_coord_tokens_of_another_trainer_get_what_they_lack_and_keep_their_rows(untied, structure, added):
    model, tokenizer = untied
    tokenizer.add_tokens(ints_to_tokens(range(1000)), special_tokens=True)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    num_before, first = len(tokenizer), tokenizer.convert_tokens_to_ids("<|coord_0|>")
    with torch.no_grad():  # as if trained
        rows(model)[first:].fill_(7.0)
        model.get_output_embeddings().weight[first:].fill_(5.0)
    assert coord_vocab(tokenizer).wildcard_id is None  # can be read and evaluated as it is
    vocab = expand_vocab(model, tokenizer, init="numeric", structure=structure)
    assert vocab.coord_ids == range(first, first + 1000)
    assert vocab.wildcard_id == num_before
    assert len(tokenizer) == len(rows(model)) == num_before + added
    assert bool((rows(model)[first:num_before] == 7.0).all())
    assert bool((model.get_output_embeddings().weight[first:num_before] == 5.0).all())
    torch.testing.assert_close(rows(model)[num_before], rows(model)[:num_before].mean(dim=0))
    assert expand_vocab(model, tokenizer, init="numeric", structure=structure) == vocab


def test_a_wildcard_alone_gets_its_coord_tokens(tied):
    model, tokenizer = tied
    tokenizer.add_tokens(["<|coord_*|>"], special_tokens=True)
    vocab = expand_vocab(model, tokenizer, init="numeric")
    assert vocab.coord_ids == range(vocab.wildcard_id + 1, vocab.wildcard_id + 1001)


def test_an_expanded_tokenizer_with_a_small_model_is_refused(tied, base):
    model, tokenizer = tied
    expand_vocab(model, tokenizer)
    with pytest.raises(TokenizerError, match=f"{len(tokenizer)}.*{len(rows(base[1]))} rows"):
        expand_vocab(copy.deepcopy(base[1]), tokenizer)


def test_numeric_needs_digits_of_one_token(tied, monkeypatch):
    model, tokenizer = tied
    monkeypatch.setattr(type(tokenizer), "encode", lambda self, text, **_: [1, 2])
    with pytest.raises(TokenizerError, match="digit 0.*2 tokens.*init"):
        expand_vocab(model, tokenizer, init="numeric")


def test_coord_tokens_in_another_order_are_refused(tied):
    model, tokenizer = tied
    tokenizer.add_tokens(["<|coord_1|>", "<|coord_0|>", *ints_to_tokens(range(2, 1000)), "<|coord_*|>"])
    with pytest.raises(TokenizerError, match=r"<\|coord_\d\|>"):
        expand_vocab(model, tokenizer)


def test_ids_with_gaps_are_refused(base):
    tokenizer = copy.deepcopy(base[0])
    known = tokenizer.get_vocab() | {"far away": 5000}
    tokenizer.get_vocab = lambda: known
    with pytest.raises(TokenizerError, match="640.*5000"):
        expand_tokenizer(tokenizer)
