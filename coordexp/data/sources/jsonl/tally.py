"""What the boxes of a whole file of records are like: how many the rule changed, and whether they are in our frame."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coordexp.coord_tokens.validator import Box, PrequantisedError, RecordBoxes, check_scaling
from coordexp.data.reading import Reading
from coordexp.data.sources.frame import ResizedCopies, beyond_problem
from coordexp.errors import DataError


class BoxChanges(NamedTuple):
    """How many boxes of a picture the rule for boxes changed."""

    num_clipped: int
    num_swapped: int
    num_no_extent: int

    def plus(self, other: "BoxChanges") -> "BoxChanges":
        """Return the changes of two records together."""
        return BoxChanges(
            self.num_clipped + other.num_clipped,
            self.num_swapped + other.num_swapped,
            self.num_no_extent + other.num_no_extent,
        )


@dataclass
class Tally:
    """What the boxes of a file are like, collected record by record.

    Attributes:
        swapped: for each box that was put in order, the index of its record.
        clipped: the same for each box that was clipped.
        no_extent: the same for each box that is left out.
        num_trimmed: descriptions with white space around them.
        prequantised: why the first boxes that are bins already need a switch; "" if none are.
        corners_norm: corners as fractions of the image, as written; without bins, which cannot lie beyond it.
        resized: detects boxes in pixels of resized copies.
    """

    swapped: list[int] = field(default_factory=list[int])
    clipped: list[int] = field(default_factory=list[int])
    no_extent: list[int] = field(default_factory=list[int])
    num_trimmed: int = 0
    prequantised: str = ""
    corners_norm: list[Box] = field(default_factory=list[Box])
    resized: ResizedCopies = field(default_factory=ResizedCopies)

    def look(self, record: Mapping[str, object], boxes: RecordBoxes, reading: Reading, *, line: int) -> None:
        """Note what tells the frame of the whole file; a record that turns out to be bad tells it as well.

        Args:
            record: with its size.
            boxes: of the record.
            reading: how records are read if they do not say it themselves.
            line: number of the record's line.
        """
        if not self.prequantised:
            self.prequantised = _prequantised_problem(boxes, f"line {line}")
        if not boxes.prequantised:
            self.corners_norm += boxes.boxes_norm_xyxy
        if boxes.form == "pixels" and record.get("bbox_format", reading.bbox_format) in (None, "pixels"):
            self.resized.look(raw_boxes(record), record.get("width"), record.get("height"))

    def add(self, index: int, boxes: RecordBoxes, changes: BoxChanges) -> None:
        """Count what was changed in a record that can be used."""
        self.num_trimmed += sum(item.get("desc") != str(item.get("desc")).strip() for item in boxes.objects)
        self.swapped += [index] * changes.num_swapped
        self.clipped += [index] * changes.num_clipped
        self.no_extent += [index] * changes.num_no_extent

    def frame_warning(self, path: Path, *, max_bad_fraction: float) -> str | None:
        """Return what the boxes look like if they are of another frame, and all are to be taken; else None.

        Raises:
            DataError: if they are of another frame, and ``max_bad_fraction`` is less than 1.
        """
        self.resized.refuse(path)
        problem = beyond_problem(np.array(self.corners_norm, np.float64).reshape(-1, 4))
        if problem is not None and max_bad_fraction < 1:
            raise DataError(
                f"{path}: {problem}; expected left, top, right, bottom inside each image. Correct them, or set "
                "data.max_bad_fraction to 1 to take them as they are"
            )
        return problem


def _prequantised_problem(boxes: RecordBoxes, where: str) -> str:
    """Return why boxes that are bins already need ``custom.coord_tokens.skip_bbox_norm``; "" for other boxes."""
    try:
        check_scaling(boxes, accept_prequantised=False)
    except PrequantisedError as error:
        return f"{where}: {error}"
    return ""


def raw_boxes(record: Mapping[str, object]) -> list[list[float]]:
    """Return the boxes of a record as they are written, if they are four numbers."""
    items = record.get("objects")
    boxes: list[list[float]] = []
    for item in items if isinstance(items, list) else []:
        box = item.get("bbox_2d", item.get("bbox")) if isinstance(item, dict) else None
        if isinstance(box, list) and len(box) == 4 and all(isinstance(value, int | float) for value in box):
            boxes.append(box)
    return boxes
