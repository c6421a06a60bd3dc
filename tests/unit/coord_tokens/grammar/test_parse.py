import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordexp.coord_tokens.grammar.parse import FAILURE_KINDS, ObjectSpan, parse_generated
from coordexp.coord_tokens.vocab import CoordVocab, NumberTokens

# text 0..9, markers 10..12, end 13, other 15, wildcard 16, coords from 17: bin k is id 17 + k.
NATIVE = CoordVocab(NumberTokens(range(17, 1017)), 16, 10, 11, 12, 13, "native")
SPEC = CoordVocab(NumberTokens(range(17, 1017)), 16, 10, None, 12, 13, "spec")
TEXT = frozenset(range(10))
C = [17, 18, 117, 1016]
GOOD = [10, 3, 4, 11, *C, 12]


def box_of(ids: list[int], span: ObjectSpan) -> list[int]:
    """The tokens between the markers of a box."""
    return ids[span.numbers[0].start : span.numbers[3].stop]


def test_an_object_is_found_where_it_stands() -> None:
    ids = [*GOOD, 10, 5, 11, 20, 21, 22, 23, 12, 13]
    parsed = parse_generated(ids, NATIVE, text_ids=TEXT)
    assert parsed.failures == ()
    assert [(ids[span.desc], box_of(ids, span)) for span in parsed.objects] == [([3, 4], C), ([5], [20, 21, 22, 23])]
    assert [span.numbers[0].start for span in parsed.objects] == [4, 12]


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
def test_each_failure_is_counted_once_between_good_objects(piece: list[int], kind: str) -> None:
    ids = [*GOOD, *piece, *GOOD]
    parsed = parse_generated(ids, NATIVE, text_ids=TEXT)
    assert parsed.failures == (kind,)
    assert [box_of(ids, span) for span in parsed.objects] == [C, C]
    alone = parse_generated(piece, NATIVE, text_ids=TEXT)
    assert (alone.failures, alone.objects) == ((kind,), ())


def test_nothing_behind_the_end_token_counts() -> None:
    parsed = parse_generated([*GOOD, 13, *GOOD, 3], NATIVE, text_ids=TEXT)
    assert (len(parsed.objects), parsed.failures) == (1, ())
    assert parse_generated([], NATIVE, text_ids=TEXT).objects == ()


@given(
    ids=st.lists(st.one_of(st.sampled_from([3, 10, 11, 12, 12, 13, 15, 16, 17, 18]), st.integers(0, 2000)), max_size=60)
)
@pytest.mark.parametrize("vocab", [NATIVE, SPEC])
def test_any_ids_parse_and_every_opening_is_accounted_for(vocab: CoordVocab, ids: list[int]) -> None:
    parsed = parse_generated(ids, vocab, text_ids=TEXT)
    before_end = ids[: ids.index(13)] if 13 in ids else ids
    malformed = [kind for kind in parsed.failures if kind != "stray_tokens"]
    assert len(parsed.objects) + len(malformed) == before_end.count(10)
    assert set(parsed.failures) <= set(FAILURE_KINDS)
    for span in parsed.objects:
        assert all(0 <= token - 17 <= 999 for token in box_of(ids, span))
        assert len(box_of(ids, span)) == 4
        assert len(ids[span.desc]) >= 1
