"""What an evaluation keeps of every object that was generated, in memory, in ``objects.jsonl`` and as arrays.

A new quantity of an object is computed in :mod:`coordexp.evaluate.generate.generation` and kept in a field of
:class:`DetectedObject`; files and readers follow.

Legend of shapes: ``D`` objects of known categories, images by id, each image's in generated order.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from coordexp.coord_tokens.bins import NUM_BINS
from coordexp.detection.boxes import Floats, Ints, to_boxes_px_xywh
from coordexp.detection.detections import Detections
from coordexp.evaluate.distributions import ObjectCurves
from coordexp.files import read_json_lines, write_text
from coordexp.metrics import BoxKind

# As files hold them and arrays take them.
Integer = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Four = tuple[Finite, Finite, Finite, Finite]


@dataclass(frozen=True)
class DetectedObject:
    """One well-formed object, as it stands in ``objects.jsonl``.

    Attributes:
        desc: the description as written.
        category_id: the category it names; None for none.
        bins: x1, y1, x2, y2 in thousandths of the image side, as emitted; corners may be swapped. A bin of ours is at
            most 999; a model that answers in JSON may say 1000, the border itself.
        expected: expected coordinates at the same positions, as fractions of the image side; where coordinates are
            written as text, those of ``bins``.
        width: standard deviations of the bin distributions there, in bins; 0 where coordinates are written as text.
        score: the named score of the evaluation.
    """

    desc: str
    category_id: Integer | None
    bins: tuple[Integer, Integer, Integer, Integer]
    expected: Four
    width: Four
    score: Finite


@dataclass(frozen=True)
class ImageRecord:
    """What was generated for one image; picklable, so that ranks can send it.

    Attributes:
        image_id: id in the annotation file.
        objects: in generated order.
        failures: one for each malformed piece.
        truncated: the length limit came before the end token.
        coord_mass: probability of the coord vocabulary at each position that emitted a coord token; in the text arm
            that of the digits at each digit of a box.
        num_tokens: generated tokens, the end token excluded.
        token_ids: the tokens themselves, the end token excluded.
        curves: bin distributions of its objects, where the image is one of those that keep them.
        unforced: the grammar never forbade what the model preferred, so that free decoding writes the same.
    """

    image_id: int
    objects: tuple[DetectedObject, ...]
    failures: tuple[str, ...] = ()
    truncated: bool = False
    coord_mass: tuple[float, ...] = ()
    num_tokens: int = 0
    token_ids: tuple[int, ...] = ()
    curves: tuple[ObjectCurves, ...] | None = None
    unforced: bool = False


@dataclass(frozen=True)
class ImageLine:
    """One line of ``objects.jsonl``; see :class:`ImageRecord`."""

    image_id: Integer
    objects: tuple[DetectedObject, ...]
    failures: tuple[str, ...]
    truncated: bool


@dataclass(frozen=True, eq=False)
class ObjectTable:
    """Objects of known categories as arrays: row ``i`` is the object behind detection ``i``.

    Attributes:
        image_ids: ``[D]``.
        category_ids: ``[D]``.
        bins: ``[D, 4]`` emitted bins x1, y1, x2, y2.
        expected: ``[D, 4]`` expected coordinates.
        width: ``[D, 4]`` standard deviations in bins.
        scores: ``[D]``.
    """

    image_ids: Ints
    category_ids: Ints
    bins: Ints
    expected: Floats
    width: Floats
    scores: Floats

    @classmethod
    def of(cls, images: Sequence[ImageRecord] | Sequence[ImageLine]) -> "ObjectTable":
        """Take the objects of known categories out of images."""
        known = [
            (image.image_id, item.category_id, item)
            for image in images
            for item in image.objects
            if item.category_id is not None
        ]
        return cls(
            image_ids=np.array([image_id for image_id, _, _ in known], np.int64),
            category_ids=np.array([category_id for _, category_id, _ in known], np.int64),
            bins=np.array([item.bins for _, _, item in known], np.int64).reshape(-1, 4),
            expected=np.array([item.expected for _, _, item in known], np.float64).reshape(-1, 4),
            width=np.array([item.width for _, _, item in known], np.float64).reshape(-1, 4),
            scores=np.array([item.score for _, _, item in known], np.float64),
        )

    def boxes_norm_xyxy(self, kind: BoxKind) -> Floats:
        """Return ``[D, 4]`` boxes in fractions of the image's sides; corners may be swapped."""
        return self.bins / NUM_BINS if kind == "argmax" else self.expected

    def detections(self, kind: BoxKind, sizes_px: Mapping[int, tuple[int, int]]) -> Detections:
        """Return the detections, in pixels of the original images.

        Args:
            kind: which boxes.
            sizes_px: image id -> original width and height.
        """
        sizes = np.array([sizes_px[image_id] for image_id in self.image_ids.tolist()], np.float64).reshape(-1, 2)
        boxes = to_boxes_px_xywh(self.boxes_norm_xyxy(kind), sizes)
        return Detections(self.image_ids, self.category_ids, boxes, self.scores)

    def ordered_width(self, kind: BoxKind) -> Floats:
        """Return the widths in the order of the box's ordered corners: swapped corners swap theirs."""
        corners = self.boxes_norm_xyxy(kind)
        swapped = corners[:, :2] > corners[:, 2:]
        low, high = self.width[:, :2], self.width[:, 2:]
        return np.concatenate([np.where(swapped, high, low), np.where(swapped, low, high)], axis=1)


def write_objects(path: Path, records: Sequence[ImageRecord]) -> None:
    """Write ``objects.jsonl``: all objects of an image in a line, also those that name no category."""
    lines = (
        {
            "image_id": record.image_id,
            "objects": [vars(item) for item in record.objects],
            "failures": record.failures,
            "truncated": record.truncated,
        }
        for record in records
    )
    write_text(path, "".join(json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n" for line in lines))


def write_answers(path: Path, records: Sequence[ImageRecord]) -> None:
    """Write ``answers.jsonl``: the tokens of each answer, as ``coordexp evaluate --generations`` reads them."""
    lines = (
        {
            "image_id": record.image_id,
            "token_ids": record.token_ids,
            "finish_reason": "length" if record.truncated else "stop",
        }
        for record in records
    )
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def read_objects(path: Path) -> list[ImageLine]:
    """Read ``objects.jsonl``.

    Raises:
        DataError: naming the file, the line and what is wrong with it.
    """
    return read_json_lines(ImageLine, path)
