"""Generated ids -> objects, with a typed failure for each piece that is none.

Free decoding writes whatever it likes: nothing here raises, everything is counted.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from coordexp.coord_tokens.vocab import CoordVocab
from coordexp.evaluate.generate.generation import GeneratedSequence

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

DecodeText = Callable[[Sequence[int]], str]
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class ParsedObject:
    """One well-formed object.

    Attributes:
        desc: the description as written.
        bins: emitted bins x1, y1, x2, y2; corners may be swapped.
        expected: expected coordinates at the same positions, as fractions of the image side.
        width: standard deviations of the bin distributions there, in bins.
        coord_log_probs: log probabilities of the four coord tokens.
        desc_log_probs: log probabilities of the description tokens.
        position: of the first coord token in the generated sequence.
    """

    desc: str
    bins: tuple[int, int, int, int]
    expected: Box
    width: Box
    coord_log_probs: tuple[float, ...]
    desc_log_probs: tuple[float, ...]
    position: int


@dataclass(frozen=True)
class ParsedSequence:
    """The objects of one image in generated order, and a failure for each malformed piece."""

    objects: tuple[ParsedObject, ...]
    failures: tuple[FailureKind, ...]


@dataclass(frozen=True)
class _Piece:
    """Half-open ``[start, stop)``; an object's piece starts at its opening token."""

    start: int
    stop: int
    kind: Literal["object", "unclosed", "stray_tokens"]


def parse_objects(
    seq: GeneratedSequence, vocab: CoordVocab, decode_text: DecodeText, *, text_ids: Collection[int] | None = None
) -> ParsedSequence:
    """Find the objects of a generated sequence.

    Args:
        seq: what was generated; its end token, if there, and all behind it are ignored.
        vocab: ids of markers and coord tokens.
        decode_text: text of description tokens.
        text_ids: ids a description may hold, best as a set; None: whatever is no marker and no coord token.

    Returns:
        Objects and failures. Each malformed object, and each run of tokens outside objects, is
        one failure.
    """
    ids = seq.ids[: seq.ids.index(vocab.end_id)] if vocab.end_id in seq.ids else seq.ids
    text_length = _text_length(vocab, text_ids)
    objects: list[ParsedObject] = []
    failures: list[FailureKind] = []
    for piece in _pieces(ids, vocab):
        if piece.kind != "object":
            failures.append(piece.kind)
            continue
        start = piece.start + 1
        body = ids[start : piece.stop - 1]
        num_text = text_length(body)
        failure = _failure(body, num_text, vocab)
        if failure is not None:
            failures.append(failure)
            continue
        box = slice(piece.stop - 5, piece.stop - 1)
        objects.append(_object(seq, slice(start, start + num_text), box, vocab, decode_text))
    return ParsedSequence(objects=tuple(objects), failures=tuple(failures))


def _pieces(ids: Sequence[int], vocab: CoordVocab) -> Iterator[_Piece]:
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


def _text_length(vocab: CoordVocab, text_ids: Collection[int] | None) -> Callable[[Sequence[int]], int]:
    """Return a function that counts the leading description tokens of an object's body."""
    markers = {vocab.obj_start_id, vocab.box_start_id, vocab.obj_end_id, vocab.end_id, vocab.wildcard_id}

    def is_text(token: int) -> bool:
        if text_ids is not None:
            return token in text_ids
        return token not in markers and token not in vocab.coord_ids

    def text_length(body: Sequence[int]) -> int:
        return next((at for at, token in enumerate(body) if not is_text(token)), len(body))

    return text_length


def _failure(body: Sequence[int], num_text: int, vocab: CoordVocab) -> FailureKind | None:
    """Say what is wrong between the opening and the closing token; None if nothing is."""
    if num_text == 0:
        return "empty_description"
    box = body[num_text:]
    if vocab.box_start_id is not None:
        if not box or box[0] in vocab.coord_ids:
            return "missing_box_marker"
        if box[0] != vocab.box_start_id:
            return "unexpected_token"
        box = box[1:]
    if any(token not in vocab.coord_ids for token in box):
        return "unexpected_token"
    if len(box) == 4:
        return None
    return "too_few_coords" if len(box) < 4 else "too_many_coords"


def _object(
    seq: GeneratedSequence, desc: slice, box: slice, vocab: CoordVocab, decode_text: DecodeText
) -> ParsedObject:
    x1, y1, x2, y2 = (token - vocab.coord_ids.start for token in seq.ids[box])
    ex1, ey1, ex2, ey2 = seq.expected[box]
    wx1, wy1, wx2, wy2 = seq.width[box]
    return ParsedObject(
        desc=decode_text(seq.ids[desc]),
        bins=(x1, y1, x2, y2),
        expected=(ex1, ey1, ex2, ey2),
        width=(wx1, wy1, wx2, wy2),
        coord_log_probs=seq.log_probs[box],
        desc_log_probs=seq.log_probs[desc],
        position=box.start,
    )
