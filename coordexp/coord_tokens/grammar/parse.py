"""Generated ids -> where the objects stand in them, with a typed failure for each malformed piece.

Free decoding writes whatever it likes: nothing here raises, everything is counted.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from coordexp.coord_tokens.bins import NUM_COORDS

if TYPE_CHECKING:
    from coordexp.coord_tokens.vocab import CoordVocab, NumberTokens

FailureKind = Literal[
    "stray_tokens",
    "unclosed",
    "empty_description",
    "missing_box_marker",
    "too_few_coords",
    "too_many_coords",
    "number_out_of_range",
    "unexpected_token",
]
FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)
"""``stray_tokens``: a run of tokens outside any object. ``unclosed``: no closing token before the
next object or the end. ``empty_description``: no text after the opening token.
``missing_box_marker``: coordinates or the closing token right after the description (native).
``too_few_coords``, ``too_many_coords``: the box holds coordinates only, but not four.
``number_out_of_range``: a number of the text arm above 999, or with more than three digits.
``unexpected_token``: any other token where the grammar allows none: digits in a box of coord tokens, letters or a
wrong separator in one of digits."""


class ObjectSpan(NamedTuple):
    """One well-formed object in a sequence of ids."""

    desc: slice  # the tokens of its description, at least one
    numbers: tuple[slice, slice, slice, slice]  # those of x1, y1, x2 and y2; corners may be swapped


@dataclass(frozen=True)
class ParsedIds:
    """The objects of one sequence in generated order, and a failure for each malformed piece."""

    objects: tuple[ObjectSpan, ...]
    failures: tuple[FailureKind, ...]


def parse_generated(ids: Sequence[int], vocab: "CoordVocab", *, text_ids: Collection[int]) -> ParsedIds:
    """Find the objects of a generated sequence; each malformed one, and each run of tokens outside, is one failure.

    The end token, if it is there, and all behind it are ignored. ``text_ids``, best as a set, are those a description
    may hold.
    """
    if vocab.end_id in ids:
        ids = ids[: ids.index(vocab.end_id)]
    objects: list[ObjectSpan] = []
    failures: list[FailureKind] = []
    for begin, stop, malformed in _pieces(ids, vocab):
        if malformed is not None:
            failures.append(malformed)
            continue
        start = begin + 1
        body = ids[start : stop - 1]
        num_text = next((at for at, token in enumerate(body) if token not in text_ids), len(body))
        found = _numbers_of(body, num_text, vocab)
        if isinstance(found, str):
            failures.append(found)
            continue
        x1, y1, x2, y2 = (slice(start + at.start, start + at.stop) for at in found)
        objects.append(ObjectSpan(slice(start, start + num_text), (x1, y1, x2, y2)))
    return ParsedIds(objects=tuple(objects), failures=tuple(failures))


def _pieces(ids: Sequence[int], vocab: "CoordVocab") -> Iterator[tuple[int, int, FailureKind | None]]:
    """Yield half-open ``[start, stop)`` of closed objects, of unclosed ones, and of runs of tokens outside."""
    at = 0
    while at < len(ids):
        start = at
        inside = ids[at] == vocab.obj_start_id
        at += 1
        while at < len(ids) and ids[at] != vocab.obj_start_id and not (inside and ids[at] == vocab.obj_end_id):
            at += 1
        closed = inside and at < len(ids) and ids[at] == vocab.obj_end_id
        at += closed
        yield start, at, None if closed else "unclosed" if inside else "stray_tokens"


def _numbers_of(body: Sequence[int], num_text: int, vocab: "CoordVocab") -> list[slice] | FailureKind:
    """Return the four numbers between the opening and the closing token, or what is wrong there."""
    numbers = vocab.numbers
    if num_text == 0:
        return "empty_description"
    at = num_text
    for marker in vocab.before_box:
        if at == len(body) or body[at] in numbers.ids:
            return "missing_box_marker"
        if body[at] != marker:
            return "unexpected_token"
        at += 1
    spans = _runs(body, at, numbers)
    if spans is None:
        return "unexpected_token"
    if any(span.stop - span.start > numbers.places for span in spans):
        return "number_out_of_range"
    if len(spans) == NUM_COORDS:
        return spans
    return "too_few_coords" if len(spans) < NUM_COORDS else "too_many_coords"


def _runs(body: Sequence[int], start: int, numbers: "NumberTokens") -> list[slice] | None:
    """Return the numbers of a box as written: any count, of any length; None where anything else is among them."""
    if numbers.separator_id is None:
        are_numbers = all(token in numbers.ids for token in body[start:])
        return [slice(at, at + 1) for at in range(start, len(body))] if are_numbers else None
    spans: list[slice] = []
    while start < len(body):
        stop = start
        while stop < len(body) and body[stop] in numbers.ids:
            stop += 1
        follows = stop + 1 < len(body) and body[stop] == numbers.separator_id
        if stop == start or not (follows or stop == len(body)):
            return None
        spans.append(slice(start, stop))
        start = stop + 1
    return spans
