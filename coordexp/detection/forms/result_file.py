"""A file of detections as columns, as it stands: with its own images and categories, in its own frame.

Legend of shapes: ``D`` detections.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coordexp.detection.boxes import Floats, Ints
from coordexp.detection.forms.frames import Frame
from coordexp.detection.forms.keys import Image, Key
from coordexp.detection.ground_truth import LARGEST_NUMBER
from coordexp.errors import DataError, show


@dataclass(frozen=True, eq=False)
class ResultFile:
    """A file as it stands.

    Attributes:
        images: distinct images, in the order in which they were met.
        image: ``[D]`` place of each detection's image among them.
        categories: distinct categories, likewise.
        category: ``[D]`` place of each detection's category among them.
        boxes: ``[D, 4]`` in ``frame``.
        scores: ``[D]``; None if no entry has one.
        frame: of the boxes and of the numbers of categories.
        is_plain: whether pycocotools reads the file as well.
        remarks: what was read otherwise than it stands, or by a rule that could be wrong.
    """

    images: list[Image]
    image: Ints
    categories: list[Key]
    category: Ints
    boxes: Floats
    scores: Floats | None
    frame: Frame = Frame()  # noqa: RUF009
    is_plain: bool = False
    remarks: tuple[str, ...] = ()


class HoldsAnswersError(DataError):
    """A file that should hold boxes holds the texts in which a model wrote them.

    ``text``: the first of them, which tells which model's form it is; None if it is given as token ids.
    """

    def __init__(self, message: str, text: object) -> None:
        super().__init__(message)
        self.text = text


def check_finite(path: Path, boxes: Floats, scores: Floats | None) -> None:
    """Raise a DataError that names the first box that is not finite, or the first such score.

    Args:
        path: of the file, for the message.
        boxes: ``[D, 4]``.
        scores: ``[D]``; None if there are none.
    """
    bad_boxes = np.flatnonzero(~(np.abs(boxes) < LARGEST_NUMBER).all(axis=1))
    if len(bad_boxes):
        first = bad_boxes[0]
        raise DataError(f"{path}: detection[{first}]: bbox is {show(boxes[first].tolist())}, expected finite numbers")
    if scores is None:
        return
    bad_scores = np.flatnonzero(~(np.abs(scores) < LARGEST_NUMBER))
    if len(bad_scores):
        first = bad_scores[0]
        raise DataError(f"{path}: detection[{first}]: score is {show(float(scores[first]))}, expected a finite number")
