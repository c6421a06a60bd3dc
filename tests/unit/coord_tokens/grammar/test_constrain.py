import numpy as np
import pytest
import torch

from coordexp.coord_tokens.grammar.constrain import ObjectGrammar, State, TokenClass
from coordexp.coord_tokens.grammar.sequence import encode_target, text_encoder
from coordexp.coord_tokens.vocab import CoordVocab, NumberTokens

# A vocabulary small enough to read: text 0..9, markers 10..12, end 13, pad 14, other 15, wildcard 16, coords from 17.
NATIVE = CoordVocab(NumberTokens(range(17, 1017)), 16, 10, 11, 12, 13, "native")
SPEC = CoordVocab(NumberTokens(range(17, 1017)), 16, 10, None, 12, 13, "spec")
END, PAD, OTHER = 13, 14, 15
V = 1020


def grammar_of(vocab: CoordVocab) -> ObjectGrammar:
    return ObjectGrammar(vocab, vocab_size=V, text_ids=range(10), pad_id=PAD)


def allowed_after(grammar: ObjectGrammar, ids: list[int]) -> set[int]:
    state = torch.tensor([int(State.START)])
    for token in ids:
        assert grammar.allowed_SV[state[0], token], f"{token} is forbidden in state {int(state)}"
        state = grammar.advance(state, torch.tensor([token]))
    return set(grammar.allowed_SV[state[0]].nonzero().flatten().tolist())


TEXT, COORDS = set(range(10)), set(range(17, 1017))


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ([], {10, END}),
        ([10], TEXT),
        ([10, 3], TEXT | {11}),
        ([10, 3, 4], TEXT | {11}),
        ([10, 3, 11], COORDS),
        ([10, 3, 11, 17], COORDS),
        ([10, 3, 11, 17, 1016], COORDS),
        ([10, 3, 11, 17, 18, 19], COORDS),
        ([10, 3, 11, 17, 18, 19, 20], {12}),
        ([10, 3, 11, 17, 18, 19, 20, 12], {10, END}),
        ([10, 3, 11, 17, 18, 19, 20, 12, END], {END, PAD}),
        ([END, PAD, PAD], {END, PAD}),
    ],
)
def test_native_allows_exactly_what_may_follow(prefix: list[int], expected: set[int]) -> None:
    assert allowed_after(grammar_of(NATIVE), prefix) == expected


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ([], {10, END}),
        ([10], TEXT),
        ([10, 3], TEXT | COORDS),
        ([10, 3, 17], COORDS),
        ([10, 3, 17, 18, 19], COORDS),
        ([10, 3, 17, 18, 19, 20], {12}),
        ([10, 3, 17, 18, 19, 20, 12], {10, END}),
        ([END], {END, PAD}),
    ],
)
def test_spec_allows_exactly_what_may_follow(prefix: list[int], expected: set[int]) -> None:
    assert allowed_after(grammar_of(SPEC), prefix) == expected


def test_every_state_has_a_way_on_and_other_tokens_never_pass() -> None:
    for vocab in (NATIVE, SPEC):
        grammar = grammar_of(vocab)
        assert len(grammar.allowed_SV) == (9 if vocab is NATIVE else 8)
        assert grammar.allowed_SV.any(dim=1).all()
        assert not grammar.allowed_SV[:, [OTHER, 16, 1017, 1019]].any()
        assert grammar.classes_V[OTHER] == int(TokenClass.OTHER)


def test_real_targets_are_sentences_of_the_grammar(base) -> None:
    grammar = ObjectGrammar.for_model(base.vocab, base.tokenizer, vocab_size=base.vocab_size)
    boxes = np.array([(0.1, 0.2, 0.3, 1.0), (0.0, 0.0, 0.5, 0.5)])
    ids = encode_target(["red circle", "dining table"], boxes, base.vocab, text_encoder(base.tokenizer)).ids
    assert allowed_after(grammar, ids) == {base.vocab.end_id, base.tokenizer.pad_token_id}
    with pytest.raises(AssertionError, match="forbidden"):
        allowed_after(grammar, [*ids[:4], ids[0], *ids[4:]])


def test_random_walks_under_the_grammar_close_every_object() -> None:
    rng = np.random.default_rng(0)
    grammar = grammar_of(NATIVE)
    state, ids = torch.tensor([int(State.START)]), []
    for _ in range(300):
        choices = grammar.allowed_SV[state[0]].nonzero().flatten().tolist()
        choices = [c for c in choices if c != END] or choices
        ids.append(int(rng.choice(choices)) if len(ids) % 9 else choices[-1])
        state = grammar.advance(state, torch.tensor([ids[-1]]))
    assert abs(ids.count(10) - ids.count(12)) <= 1
    assert ids.count(12) >= 3


def test_too_small_a_model_is_refused() -> None:
    with pytest.raises(ValueError, match="900"):
        ObjectGrammar(NATIVE, vocab_size=900, text_ids=range(10), pad_id=PAD)
