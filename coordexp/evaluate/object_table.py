"""The objects behind detections: what ``objects.jsonl`` knows of them and a results file does not.

Shapes: D objects of known categories, images by id, each image's in generated order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from coordexp.errors import DataError
from coordexp.metrics import BoxKind

_Four = tuple[float, float, float, float]


@dataclass(frozen=True)
class ObjectTable:
    """Objects of known categories, one for each detection, in its order.

    Attributes:
        image_ids: ``[D]``.
        bins: ``[D, 4]`` emitted bins x1, y1, x2, y2.
        expected: ``[D, 4]`` expected coordinates.
        width: ``[D, 4]`` standard deviations in bins; None if they were not recorded.
    """

    image_ids: NDArray[np.int64]
    bins: NDArray[np.float64]
    expected: NDArray[np.float64]
    width: NDArray[np.float64] | None

    @classmethod
    def of(cls, rows: Sequence[tuple[int, _Four, _Four, _Four | None]]) -> "ObjectTable":
        """Join rows of image id, bins, expected coordinates and widths."""
        widths = [width for *_, width in rows if width is not None]
        return cls(
            image_ids=np.array([image_id for image_id, *_ in rows], np.int64),
            bins=np.array([bins for _, bins, *_ in rows], np.float64).reshape(-1, 4),
            expected=np.array([expected for _, _, expected, _ in rows], np.float64).reshape(-1, 4),
            width=np.array(widths, np.float64).reshape(-1, 4) if len(widths) == len(rows) else None,
        )

    def ordered_width(self, kind: BoxKind) -> NDArray[np.float64] | None:
        """Return the widths in the order of the box's ordered corners: swapped corners swap theirs."""
        if self.width is None:
            return None
        corners = self.bins if kind == "argmax" else self.expected
        swapped = corners[:, :2] > corners[:, 2:]
        low, high = self.width[:, :2], self.width[:, 2:]
        return np.concatenate([np.where(swapped, high, low), np.where(swapped, low, high)], axis=1)


class _Object(BaseModel):
    category_id: int | None
    bins: _Four
    expected: _Four
    width: _Four | None = None  # not in files of older versions


class _Line(BaseModel):
    image_id: int
    objects: tuple[_Object, ...]


def read_objects(path: Path) -> ObjectTable:
    """Read the objects of known categories from ``objects.jsonl``.

    Raises:
        DataError: naming the file, the line and what is wrong with it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"{path}: file not found") from None
    rows: list[tuple[int, _Four, _Four, _Four | None]] = []
    # Not splitlines: a description may hold any character, and JSON leaves exotic line ends alone.
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), start=1):
        try:
            found = _Line.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            raise DataError(f"{path}:{number}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        rows += [
            (found.image_id, item.bins, item.expected, item.width)
            for item in found.objects
            if item.category_id is not None
        ]
    return ObjectTable.of(rows)
