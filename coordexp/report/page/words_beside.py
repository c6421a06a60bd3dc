"""Where the words of boxes stand in a small picture: within it, at their own box, and not over each other."""

from collections.abc import Sequence
from dataclasses import dataclass

from coordexp.report.study.gallery import GalleryBox

MAX_WORDS = 12
_SIZE = 1 / 17  # of a letter, in widths of the picture
_LETTER = 0.62  # width of a bold letter, in sizes
_MARGIN = 2.0


@dataclass(frozen=True)
class Word:
    """A description and where its line of text begins, in pixels of the picture."""

    text: str
    x: float
    y: float
    size: float


def words_beside(boxes: Sequence[GalleryBox], width: int, height: int) -> list[Word]:
    """Return a word for each of the first boxes.

    It stands at the top of its box if that is high enough, else above it, below it or at its bottom; the first of these
    places that no other word has, or else the one that is covered least. What is longer than the picture is cut.

    Args:
        boxes: in the order in which they are drawn.
        width: of the picture, in pixels.
        height: the same.
    """
    size = round(width * _SIZE, 1)
    longest = int((width - 2 * _MARGIN) / (_LETTER * size))
    placed: list[Word] = []
    for box in boxes[:MAX_WORDS]:
        x, y, _, h = box.box_px_xywh
        inside, above, below, bottom = y + size, y - 3, y + h + size, y + h - 4
        lines = (inside, above, below, bottom) if h > 2 * size else (above, below, inside, bottom)
        text = box.category if len(box.category) <= longest else f"{box.category[: longest - 1]}…"
        start = round(max(_MARGIN, min(x + _MARGIN, width - _MARGIN - _wide(text, size))), 1)
        places = [Word(text, start, round(line, 1), size) for line in lines if size <= line <= height - _MARGIN] or [
            Word(text, start, round(min(max(inside, size), height - _MARGIN), 1), size)
        ]
        placed.append(min(places, key=lambda word: sum(_overlap(word, other) for other in placed)))
    return placed


def _wide(text: str, size: float) -> float:
    return _LETTER * size * len(text)


def _overlap(a: Word, b: Word) -> float:
    """Return the area that two words share."""
    across = min(a.x + _wide(a.text, a.size), b.x + _wide(b.text, b.size)) - max(a.x, b.x)
    down = a.size - abs(a.y - b.y)
    return max(across, 0.0) * max(down, 0.0)
