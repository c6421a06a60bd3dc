"""Generated ids -> where the objects are in them, with a typed failure for each malformed piece.

Free decoding may write anything: nothing here raises, everything is counted.
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
"""What can be wrong with a piece:

- ``stray_tokens``: a run of tokens outside any object.
- ``unclosed``: no closing token before the next object or the end.
- ``empty_description``: no text after the opening token.
- ``missing_box_marker``: coordinates or the closing token right after the description (native).
- ``too_few_coords``, ``too_many_coords``: the box holds coordinates only, but not four.
- ``number_out_of_range``: a number of the text arm above 999, or with more than three digits.
- ``unexpected_token``: any other token that the grammar does not allow there: digits in a box of coord tokens, letters
  or a wrong separator in a box of digits.
"""


class ObjectSpan(NamedTuple):
    """One well-formed object in a sequence of ids."""

    desc: slice  # the tokens of its description, at least one
    numbers: tuple[slice, slice, slice, slice]  # the tokens of x1, y1, x2 and y2; corners may be swapped


@dataclass(frozen=True)
class ParsedIds:
    """The objects of one sequence in generated order, and a failure for each malformed piece."""

    objects: tuple[ObjectSpan, ...]
    failures: tuple[FailureKind, ...]


def parse_generated(ids: Sequence[int], vocab: "CoordVocab", *, text_ids: Collection[int]) -> ParsedIds:
    """Find the objects of a generated sequence.

    Args:
        ids: the generated ids. The end token, if there is one, and everything behind it are ignored.
        vocab: the ids of markers and numbers.
        text_ids: the ids that a description may hold, best as a set.

    Returns:
        The well-formed objects; and one failure for each malformed object and each run of tokens outside of objects.
    """
    if vocab.end_id in ids:
        ids = ids[: ids.index(vocab.end_id)]
    objects: list[ObjectSpan] = []
    failures: list[FailureKind] = []
    for start, stop, malformed in _pieces(ids, vocab):
        if malformed is not None:
            failures.append(malformed)
            continue
        body_start = start + 1
        body = ids[body_start : stop - 1]
        num_text = 0
        while num_text < len(body) and body[num_text] in text_ids:
            num_text += 1
        numbers = _numbers_of(body, num_text, vocab)
        if isinstance(numbers, str):
            failures.append(numbers)
            continue
        x1, y1, x2, y2 = (slice(body_start + number.start, body_start + number.stop) for number in numbers)
        objects.append(ObjectSpan(slice(body_start, body_start + num_text), (x1, y1, x2, y2)))
    return ParsedIds(objects=tuple(objects), failures=tuple(failures))


def _pieces(ids: Sequence[int], vocab: "CoordVocab") -> Iterator[tuple[int, int, FailureKind | None]]:
    """Cut a sequence into closed objects, unclosed objects and runs of tokens outside.

    Yields:
        Half-open ``start, stop`` of each piece, and what is wrong with it as a whole; None for a closed object.
    """
    position = 0
    while position < len(ids):
        start = position
        is_object = ids[position] == vocab.obj_start_id
        position += 1
        while position < len(ids) and ids[position] != vocab.obj_start_id:
            if is_object and ids[position] == vocab.obj_end_id:
                break
            position += 1
        is_closed = is_object and position < len(ids) and ids[position] == vocab.obj_end_id
        if is_closed:
            yield start, position + 1, None
            position += 1
        elif is_object:
            yield start, position, "unclosed"
        else:
            yield start, position, "stray_tokens"


def _numbers_of(body: Sequence[int], num_text: int, vocab: "CoordVocab") -> list[slice] | FailureKind:
    """Return where the four numbers are between the opening and the closing token, or what is wrong there."""
    numbers = vocab.numbers
    if num_text == 0:
        return "empty_description"
    position = num_text
    for marker in vocab.before_box:
        if position == len(body) or body[position] in numbers.ids:
            return "missing_box_marker"
        if body[position] != marker:
            return "unexpected_token"
        position += 1
    spans = _runs(body, position, numbers)
    if spans is None:
        return "unexpected_token"
    if any(span.stop - span.start > numbers.places for span in spans):
        return "number_out_of_range"
    if len(spans) == NUM_COORDS:
        return spans
    return "too_few_coords" if len(spans) < NUM_COORDS else "too_many_coords"


def _runs(body: Sequence[int], start: int, numbers: "NumberTokens") -> list[slice] | None:
    """Return the numbers of a box as written: any count, of any length; None if any other token is among them."""
    if numbers.separator_id is None:
        if not all(token in numbers.ids for token in body[start:]):
            return None
        return [slice(position, position + 1) for position in range(start, len(body))]
    spans: list[slice] = []
    while start < len(body):
        stop = start
        while stop < len(body) and body[stop] in numbers.ids:
            stop += 1
        is_empty = stop == start
        ends_body = stop == len(body)
        # A separator must be followed by another number, so it may not be the last token.
        is_separated = stop + 1 < len(body) and body[stop] == numbers.separator_id
        if is_empty or not (is_separated or ends_body):
            return None
        spans.append(slice(start, stop))
        start = stop + 1
    return spans
