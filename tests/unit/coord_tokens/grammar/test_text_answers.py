"""Answers in plain text: what is read of free ones, each failure by its kind, and what the grammar allows."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coordexp.coord_tokens.grammar.constrain import ObjectGrammar, State
from coordexp.coord_tokens.grammar.parse import FAILURE_KINDS, parse_generated
from coordexp.coord_tokens.grammar.sequence import encode_target, text_encoder
from coordexp.coord_tokens.vocab import CoordVocab, NumberTokens, text_vocab
from coordexp.model.tiny.parts import build_tokenizer

# digits 0..9 are ids 0..9, space 10, letters 11..19, opening 20, box 21, closing 22, end 23, pad 24, other 25
VOCAB = CoordVocab(NumberTokens(range(10), 3, 10), None, 20, 21, 22, 23)
TEXT = frozenset(range(20))
PAD, OTHER = 24, 25
LETTER = 11


def ids_of(box: str) -> list[int]:
    """Digits and spaces as ids, a letter for anything else."""
    return [10 if char == " " else int(char) if char.isdigit() else LETTER for char in box]


def answer(box: str, *, desc: tuple[int, ...] = (LETTER, 10, 7)) -> list[int]:
    return [20, *desc, 21, *ids_of(box), 22]


def test_numbers_are_read_where_they_stand():
    ids = [*answer("034 340 560 780"), *answer("7 80 0 999"), 23]
    parsed = parse_generated(ids, VOCAB, text_ids=TEXT)
    assert parsed.failures == ()
    found = [[VOCAB.numbers.bin_of(ids[number]) for number in span.numbers] for span in parsed.objects]
    assert found == [[34, 340, 560, 780], [7, 80, 0, 999]]
    assert [ids[span.desc] for span in parsed.objects] == [[LETTER, 10, 7]] * 2
    first = parsed.objects[0]
    assert (first.numbers[0], first.numbers[3]) == (slice(5, 8), slice(17, 20))


@pytest.mark.parametrize(
    ("box", "kind"),
    [
        ("", "too_few_coords"),
        ("034", "too_few_coords"),
        ("034 340 560", "too_few_coords"),
        ("034 340 560 780 900", "too_many_coords"),
        ("034 340 560 1780", "number_out_of_range"),
        ("034340560780", "number_out_of_range"),
        ("0034 340 560", "number_out_of_range"),
        ("034 340 560 78x", "unexpected_token"),
        ("034, 340, 560, 780", "unexpected_token"),
        ("034  340 560 780", "unexpected_token"),
        (" 034 340 560 780", "unexpected_token"),
        ("034 340 560 780 ", "unexpected_token"),
        ("x", "unexpected_token"),
        ("1000 x", "unexpected_token"),
    ],
)
def test_each_kind_of_malformed_box_is_counted_once(box: str, kind: str):
    ids = [*answer("034 340 560 780"), *answer(box), *answer("1 2 3 4")]
    parsed = parse_generated(ids, VOCAB, text_ids=TEXT)
    assert parsed.failures == (kind,)
    assert len(parsed.objects) == 2


@pytest.mark.parametrize(
    ("piece", "kind"),
    [
        (
            [20, LETTER, *ids_of("034 340 560 780"), 22],
            "missing_box_marker",
        ),  # digits are text, and the box never opens
        ([20, 21, *ids_of("034 340 560 780"), 22], "empty_description"),
        ([20, LETTER, OTHER, 21, *ids_of("034 340 560 780"), 22], "unexpected_token"),
        ([20, LETTER, 21, *ids_of("034 340"), OTHER, *ids_of("560 780"), 22], "unexpected_token"),
        ([20, LETTER, 21, *ids_of("034 340 560 780")], "unclosed"),
        (ids_of("034 340 560 780"), "stray_tokens"),
    ],
)
def test_other_malformed_pieces(piece: list[int], kind: str):
    parsed = parse_generated(piece, VOCAB, text_ids=TEXT)
    assert (parsed.failures, parsed.objects) == ((kind,), ())


@settings(deadline=None)
@given(ids=st.lists(st.sampled_from([0, 1, 9, 10, 10, 11, 20, 21, 22, 22, 23, 25]), max_size=80))
def test_any_ids_parse_to_numbers_in_range_or_a_failure(ids: list[int]):
    parsed = parse_generated(ids, VOCAB, text_ids=TEXT)
    before_end = ids[: ids.index(23)] if 23 in ids else ids
    malformed = [kind for kind in parsed.failures if kind != "stray_tokens"]
    assert len(parsed.objects) + len(malformed) == before_end.count(20)
    assert set(parsed.failures) <= set(FAILURE_KINDS)
    for span in parsed.objects:
        assert all(0 <= VOCAB.numbers.bin_of(ids[number]) <= 999 for number in span.numbers)
        assert len(span.numbers) == 4


def grammar() -> ObjectGrammar:
    return ObjectGrammar(VOCAB, vocab_size=26, text_ids=sorted(TEXT), pad_id=PAD)


def allowed_after(tables: ObjectGrammar, ids: list[int]) -> set[int]:
    state = torch.tensor([int(State.START)])
    for token in ids:
        assert tables.allowed_SV[state[0], token], f"{token} is forbidden in state {int(state)}"
        state = tables.advance(state, torch.tensor([token]))
    return set(tables.allowed_SV[state[0]].nonzero().flatten().tolist())


DIGITS, SPACE = set(range(10)), {10}


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ([], {20, 23}),
        ([20], set(TEXT)),
        ([20, 7], set(TEXT) | {21}),  # a digit may begin a description
        ([20, LETTER, 10, 7], set(TEXT) | {21}),
        ([20, LETTER, 21], DIGITS),
        ([20, LETTER, 21, 0, 3], DIGITS),
        ([20, LETTER, 21, 0, 3, 4], SPACE),
        ([20, LETTER, 21, 0, 3, 4, 10], DIGITS),
        ([20, LETTER, 21, *ids_of("034 340 560 78")], DIGITS),
        (answer("034 340 560 780")[:-1], {22}),
        (answer("034 340 560 780"), {20, 23}),
        ([*answer("034 340 560 780"), 23], {23, PAD}),
    ],
)
def test_the_grammar_allows_exactly_what_may_follow(prefix: list[int], expected: set[int]):
    assert allowed_after(grammar(), prefix) == expected


def test_real_targets_are_sentences_of_the_grammar():
    tokenizer = build_tokenizer()
    vocab = text_vocab(tokenizer)
    tables = ObjectGrammar.for_model(vocab, tokenizer, vocab_size=704)
    boxes = np.array([(0.1, 0.2, 0.3, 1.0), (0.0, 0.0, 0.5, 0.5)])
    ids = encode_target(["red circle", "boeing 747"], boxes, vocab, text_encoder(tokenizer)).ids
    assert allowed_after(tables, ids) == {vocab.end_id, tokenizer.pad_token_id}
