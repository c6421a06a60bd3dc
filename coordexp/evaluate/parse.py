"""Generated ids -> objects, with a typed failure for each piece that is none.

Free decoding writes whatever it likes: nothing here raises, everything is counted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from coordexp.coord_tokens.vocab import CoordVocab
from coordexp.evaluate.generate import GeneratedSequence

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
        coord_log_probs: log probabilities of the four coord tokens.
        desc_log_probs: log probabilities of the description tokens.
    """

    desc: str
    bins: tuple[int, int, int, int]
    expected: Box
    coord_log_probs: tuple[float, ...]
    desc_log_probs: tuple[float, ...]


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


def parse_objects(seq: GeneratedSequence, vocab: CoordVocab, decode_text: DecodeText) -> ParsedSequence:
    """Find the objects of a generated sequence.

    Args:
        seq: what was generated; anything from its end token on is ignored.
        vocab: ids of markers and coord tokens; every other id up to ``coord_ids`` that is no
            marker counts as text if ``decode_text`` makes it description text.
        decode_text: text of description tokens.

    Returns:
        Objects and failures. Each malformed object, and each run of tokens outside objects, is
        one failure.
    """
    objects: list[ParsedObject] = []
    failures: list[FailureKind] = []
    for piece in _pieces(seq.ids, vocab):
        if piece.kind != "object":
            failures.append(piece.kind)
            continue
        body = seq.ids[piece.start + 1 : piece.stop - 1]
        num_text = _leading(body, lambda token: _is_text(token, vocab))
        failure = _failure(body, num_text, vocab)
        if failure is None:
            objects.append(_object(seq, piece.start + 1, num_text, vocab, decode_text))
        else:
            failures.append(failure)
    return ParsedSequence(objects=tuple(objects), failures=tuple(failures))
