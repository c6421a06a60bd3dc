"""Generated ids -> where the objects stand in them, with a typed failure for each malformed piece.

Free decoding writes whatever it likes: nothing here raises, everything is counted.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from coordexp.coord_tokens.bins import NUM_COORDS

if TYPE_CHECKING:
    from coordexp.coord_tokens.vocab import CoordVocab

FailureKind = Literal[
    "stray_tokens",
    "unclosed",
    "empty_description",
    "missing_box_marker",
    "too_few_coords",
    "too_many_coords",
    "unexpected_token",
]
FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)
"""``stray_tokens``: a run of tokens outside any object. ``unclosed``: no closing token before the
next object or the end. ``empty_description``: no text after the opening token.
``missing_box_marker``: coordinates or the closing token right after the description (native).
``too_few_coords``, ``too_many_coords``: the box holds coord tokens only, but not four.
``unexpected_token``: any other token where the grammar allows none, such as digits in the box."""


class ObjectSpan(NamedTuple):
    """One well-formed object in a sequence of ids.

    Attributes:
        desc: the tokens of its description, at least one.
        box: its four coord tokens x1, y1, x2, y2; corners may be swapped.
    """

    desc: slice
    box: slice


@dataclass(frozen=True)
class ParsedIds:
    """The objects of one sequence in generated order, and a failure for each malformed piece."""

    objects: tuple[ObjectSpan, ...]
    failures: tuple[FailureKind, ...]


@dataclass(frozen=True)
class _Piece:
    """Half-open ``[start, stop)``; an object's piece starts at its opening token."""

    start: int
    stop: int
    kind: Literal["object", "unclosed", "stray_tokens"]


def parse_generated(ids: Sequence[int], vocab: "CoordVocab", *, text_ids: Collection[int] | None = None) -> ParsedIds:
    """Find the objects of a generated sequence.

    Args:
        ids: what was generated; the end token, if there, and all behind it are ignored.
        vocab: ids of markers and coord tokens.
        text_ids: ids a description may hold, best as a set; None: whatever is no marker and no coord token.

    Returns:
        Objects and failures. Each malformed object, and each run of tokens outside objects, is
        one failure.
    """
    if vocab.end_id in ids:
        ids = ids[: ids.index(vocab.end_id)]
    text_length = _text_length(vocab, text_ids)
    objects: list[ObjectSpan] = []
    failures: list[FailureKind] = []
    for piece in _pieces(ids, vocab):
        if piece.kind != "object":
            failures.append(piece.kind)
            continue
        start = piece.start + 1
        body = ids[start : piece.stop - 1]
        num_text = text_length(body)
        failure = _failure(body, num_text, vocab)
        if failure is None:
            objects.append(
                ObjectSpan(slice(start, start + num_text), slice(piece.stop - 1 - NUM_COORDS, piece.stop - 1))
            )
        else:
            failures.append(failure)
    return ParsedIds(objects=tuple(objects), failures=tuple(failures))


def _pieces(ids: Sequence[int], vocab: "CoordVocab") -> Iterator[_Piece]:
    """Cut a sequence into closed objects, unclosed ones, and runs of tokens outside."""
    at = 0
    while at < len(ids):
        start = at
        inside = ids[at] == vocab.obj_start_id
        at += 1
        while at < len(ids) and ids[at] != vocab.obj_start_id and not (inside and ids[at] == vocab.obj_end_id):
            at += 1
        closed = inside and at < len(ids) and ids[at] == vocab.obj_end_id
        at += closed
        yield _Piece(start, at, "object" if closed else "unclosed" if inside else "stray_tokens")


def _text_length(vocab: "CoordVocab", text_ids: Collection[int] | None) -> Callable[[Sequence[int]], int]:
    """Return a function that counts the leading description tokens of an object's body."""
    markers = {vocab.obj_start_id, *vocab.before_box, vocab.obj_end_id, vocab.end_id, vocab.wildcard_id}

    def is_text(token: int) -> bool:
        if text_ids is not None:
            return token in text_ids
        return token not in markers and token not in vocab.coord_ids

    def text_length(body: Sequence[int]) -> int:
        return next((at for at, token in enumerate(body) if not is_text(token)), len(body))

    return text_length


def _failure(body: Sequence[int], num_text: int, vocab: "CoordVocab") -> FailureKind | None:
    """Return what is wrong between the opening and the closing token; None if nothing is."""
    if num_text == 0:
        return "empty_description"
    box = body[num_text:]
    for marker in vocab.before_box:
        if not box or box[0] in vocab.coord_ids:
            return "missing_box_marker"
        if box[0] != marker:
            return "unexpected_token"
        box = box[1:]
    if any(token not in vocab.coord_ids for token in box):
        return "unexpected_token"
    if len(box) == NUM_COORDS:
        return None
    return "too_few_coords" if len(box) < NUM_COORDS else "too_many_coords"
