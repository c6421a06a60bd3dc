from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordexp.coord_tokens.grammar.parse import FAILURE_KINDS, parse_objects
from coordexp.coord_tokens.vocab import CoordVocab
from coordexp.evaluate.generate.generation import GeneratedSequence

# text 0..9, markers 10..12, end 13, other 15, wildcard 16, coords from 17: bin k is id 17 + k.
NATIVE = CoordVocab(range(17, 1017), 16, 10, 11, 12, 13, "native")
SPEC = CoordVocab(range(17, 1017), 16, 10, None, 12, 13, "spec")
C = [17, 18, 117, 1016]
GOOD = [10, 3, 4, 11, *C, 12]
Build = Callable[..., GeneratedSequence]


def words(ids) -> str:
    return " ".join(str(i) for i in ids)


def test_an_object_carries_its_own_positions(sequence: Build) -> None:
    parsed = parse_objects(sequence([*GOOD, 10, 5, 11, 20, 21, 22, 23, 12, 13]), NATIVE, words)
    assert parsed.failures == ()
    first, second = parsed.objects
    assert (first.desc, first.bins) == ("3 4", (0, 1, 100, 999))
    assert first.expected == pytest.approx((0.004, 0.005, 0.006, 0.007))
    assert first.coord_log_probs == pytest.approx((-0.04, -0.05, -0.06, -0.07))
    assert first.width == pytest.approx((14.0, 15.0, 16.0, 17.0))
    assert first.desc_log_probs == pytest.approx((-0.01, -0.02))
    assert (first.position, second.position) == (4, 12)
    assert (second.desc, second.bins) == ("5", (3, 4, 5, 6))
    assert second.coord_log_probs == pytest.approx((-0.12, -0.13, -0.14, -0.15))


def test_spec_objects_need_no_box_marker(sequence: Build) -> None:
    parsed = parse_objects(sequence([10, 3, *C, 12]), SPEC, words)
    assert parsed.failures == ()
    assert parsed.objects[0].expected == pytest.approx((0.002, 0.003, 0.004, 0.005))


@pytest.mark.parametrize(
    ("piece", "kind"),
    [
        ([10, 12], "empty_description"),
        ([10, 11, *C, 12], "empty_description"),
        ([10, *C, 12], "empty_description"),
        ([10, 3, *C, 12], "missing_box_marker"),
        ([10, 3, 12], "missing_box_marker"),
        ([10, 3, 11, 12], "too_few_coords"),
        ([10, 3, 11, *C[:3], 12], "too_few_coords"),
        ([10, 3, 11, *C, 17, 12], "too_many_coords"),
        ([10, 3, 11, 1, 2, 3, 4, 12], "unexpected_token"),
        ([10, 3, 11, *C, 5, 12], "unexpected_token"),
        ([10, 3, 15, 11, *C, 12], "unexpected_token"),
        ([10, 3, 11, *C[:2], 16, C[3], 12], "unexpected_token"),
        ([10, 3, 11, *C], "unclosed"),
        ([10], "unclosed"),
        ([3, 12, 11, 17], "stray_tokens"),
    ],
)
def test_each_failure_is_counted_once_between_good_objects(sequence: Build, piece: list[int], kind: str) -> None:
    parsed = parse_objects(sequence([*GOOD, *piece, *GOOD]), NATIVE, words, text_ids=frozenset(range(10)))
    assert parsed.failures == (kind,)
    assert [item.bins for item in parsed.objects] == [(0, 1, 100, 999)] * 2
    alone = parse_objects(sequence(piece, truncated=True), NATIVE, words, text_ids=frozenset(range(10)))
    assert (alone.failures, alone.objects) == ((kind,), ())


def test_spec_knows_no_missing_marker(sequence: Build) -> None:
    assert parse_objects(sequence([10, 3, 12]), SPEC, words).failures == ("too_few_coords",)
    assert parse_objects(sequence([10, 3, *C, 20, 12]), SPEC, words).failures == ("too_many_coords",)


def test_nothing_behind_the_end_token_counts(sequence: Build) -> None:
    parsed = parse_objects(sequence([*GOOD, 13, *GOOD, 3]), NATIVE, words)
    assert (len(parsed.objects), parsed.failures) == (1, ())
    assert parse_objects(sequence([]), NATIVE, words).objects == ()


def test_without_text_ids_unknown_tokens_read_as_description(sequence: Build) -> None:
    ids = [10, 3, 15, 11, *C, 12]
    assert parse_objects(sequence(ids), NATIVE, words).objects[0].desc == "3 15"
    assert parse_objects(sequence(ids), NATIVE, words, text_ids=frozenset(range(10))).objects == ()


@given(
    ids=st.lists(st.one_of(st.sampled_from([3, 10, 11, 12, 12, 13, 15, 16, 17, 18]), st.integers(0, 2000)), max_size=60)
)
@pytest.mark.parametrize("vocab", [NATIVE, SPEC])
def test_any_ids_parse_and_every_opening_is_accounted_for(vocab: CoordVocab, ids: list[int]) -> None:
    numbers = [(value,) * len(ids) for value in (0.0, 0.5, 9.0, 1.0)]
    seq = GeneratedSequence(1, tuple(ids), *numbers, truncated=True)
    parsed = parse_objects(seq, vocab, words)
    before_end = ids[: ids.index(13)] if 13 in ids else ids
    malformed = [kind for kind in parsed.failures if kind != "stray_tokens"]
    assert len(parsed.objects) + len(malformed) == before_end.count(10)
    assert set(parsed.failures) <= set(FAILURE_KINDS)
    for item in parsed.objects:
        assert all(0 <= k <= 999 for k in item.bins)
        assert len(item.coord_log_probs) == len(item.expected) == 4
        assert len(item.desc_log_probs) >= 1
