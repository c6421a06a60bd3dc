"""Answers as columns: what an evaluation keeps of every image and of every object, in memory and in its files.

A new quantity of an object is a column of :class:`Objects`, filled in :func:`read_answer`.

Legend of shapes: ``D`` objects, by image and within one in generated order, ``T`` tokens of an answer.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordexp.config.schema.evaluation import ScoreName
from coordexp.coord_tokens.bins import NUM_BINS
from coordexp.detection.boxes import Bools, Floats, Ints, to_boxes_px_xywh
from coordexp.detection.detections import Detections
from coordexp.detection.names.categories import CategoryIndex
from coordexp.errors import show
from coordexp.evaluate.distributions import NUM_OBJECTS, UNITS, BinCurve, Distributions, ImageCurves, ObjectCurves
from coordexp.files import read_model, write_text
from coordexp.metrics import BOX_KINDS, TOP_TOKENS, BoxKind, Decoding
from coordexp.runs.folder import DecodingFolder

if TYPE_CHECKING:  # a report reads answers, and loads nothing that makes them
    from coordexp.evaluate.generate.answer import Answer
    from coordexp.evaluate.generate.formats import WrittenObject
    from coordexp.evaluate.generate.model import AnswerFormat

Four = tuple[float, float, float, float]
Texts = NDArray[np.object_]  # strings of numpy's own type would lose a NUL at their end
_FEWEST_BOXES = 10  # fewer boxes say nothing about the scale of a model's coordinates
_COORD_WEIGHT = 0.7  # of the coordinates in the score ``coord_desc``; the description has the rest
_LOW = 0.05  # if AP is below, a user wants to know which descriptions are no category
_SHOWN_NAMES = 5


class ObjectRow(NamedTuple):
    """One object: a row of :class:`Objects`, whose columns have the same names and units."""

    image_id: int
    desc: str
    category_id: int | None  # None if the description names no category
    bins: Sequence[int]
    expected: Sequence[float]
    width: Sequence[float]
    score: float
    served: Sequence[Sequence[float]]


@dataclass(frozen=True, eq=False)
class Objects:
    """Well-formed objects; row ``i`` of every column is one object.

    Attributes:
        descs: ``[D]`` descriptions as written.
        category_ids: ``[D]`` the category that the description names; 0 if ``is_known`` is false.
        is_known: ``[D]`` whether the description names a category.
        bins: ``[D, 4]`` x1, y1, x2, y2 in thousandths of the image side, as emitted; corners may be swapped. A bin of
            ours is at most 999; a model that answers in JSON may say 1000, the border itself.
        expected: ``[D, 4]`` expected coordinates at the same positions, as fractions of the image side; equal to
            ``bins`` if coordinates are written as text.
        width: ``[D, 4]`` standard deviations of the bin distributions, in bins; 0 if coordinates are text.
        scores: ``[D]`` the named score of the evaluation.
        served: ``[D, C, 4]`` expected coordinates from the likeliest tokens alone, for each number of ``TOP_TOKENS``;
            equal to ``bins`` if coordinates are text.
    """

    image_ids: Ints
    descs: Texts
    category_ids: Ints
    is_known: Bools
    bins: Ints
    expected: Floats
    width: Floats
    scores: Floats
    served: Floats

    @classmethod
    def of(cls, rows: Sequence[ObjectRow]) -> "Objects":
        """Turn rows into columns, also no rows."""
        category_ids = [row.category_id for row in rows]
        return cls(
            image_ids=np.array([row.image_id for row in rows], np.int64),
            descs=np.array([row.desc for row in rows], np.object_),
            category_ids=np.array([0 if key is None else key for key in category_ids], np.int64),
            is_known=np.array([key is not None for key in category_ids], np.bool_),
            bins=np.array([row.bins for row in rows], np.int64).reshape(-1, 4),
            expected=np.array([row.expected for row in rows], np.float64).reshape(-1, 4),
            width=np.array([row.width for row in rows], np.float64).reshape(-1, 4),
            scores=np.array([row.score for row in rows], np.float64),
            served=np.array([row.served for row in rows], np.float64).reshape(-1, len(TOP_TOKENS), 4),
        )

    @classmethod
    def joined(cls, objects: "Sequence[Objects]") -> "Objects":
        """Put objects one behind the other, e.g. those of all answers."""
        if not objects:
            return cls.of([])
        return cls(
            image_ids=np.concatenate([block.image_ids for block in objects]),
            descs=np.concatenate([block.descs for block in objects]),
            category_ids=np.concatenate([block.category_ids for block in objects]),
            is_known=np.concatenate([block.is_known for block in objects]),
            bins=np.concatenate([block.bins for block in objects]),
            expected=np.concatenate([block.expected for block in objects]),
            width=np.concatenate([block.width for block in objects]),
            scores=np.concatenate([block.scores for block in objects]),
            served=np.concatenate([block.served for block in objects]),
        )

    def __len__(self) -> int:
        return len(self.scores)

    def rows(self, rows: Ints | Bools) -> "Objects":
        """Return some of the objects, by their numbers or by a mask ``[D]``."""
        return Objects(
            image_ids=self.image_ids[rows],
            descs=self.descs[rows],
            category_ids=self.category_ids[rows],
            is_known=self.is_known[rows],
            bins=self.bins[rows],
            expected=self.expected[rows],
            width=self.width[rows],
            scores=self.scores[rows],
            served=self.served[rows],
        )

    def boxes_norm_xyxy(self, kind: BoxKind) -> Floats:
        """Return ``[D, 4]`` boxes as fractions of the image's sides; corners may be swapped."""
        return self.bins / NUM_BINS if kind == "argmax" else self.expected

    def detections(self, kind: BoxKind, sizes_px: Mapping[int, tuple[int, int]]) -> Detections:
        """Return the objects of known categories as detections.

        Args:
            kind: which of the two boxes of each object.
            sizes_px: image id -> original width and height, in whose pixels the boxes will be.
        """
        objects = self.rows(self.is_known)
        sizes_D2 = np.array([sizes_px[image_id] for image_id in objects.image_ids.tolist()], np.float64).reshape(-1, 2)
        boxes_px_xywh = to_boxes_px_xywh(objects.boxes_norm_xyxy(kind), sizes_D2)
        return Detections(objects.image_ids, objects.category_ids, boxes_px_xywh, objects.scores)

    def served_by(self, num_tokens: int) -> "Objects":
        """Return the objects with expected coordinates from the likeliest tokens; a number of ``TOP_TOKENS``."""
        return replace(self, expected=self.served[:, TOP_TOKENS.index(num_tokens)])

    def ordered_width(self, kind: BoxKind) -> Floats:
        """Return ``[D, 4]`` widths in the order of ordered corners: where corners are swapped, so are their widths."""
        corners = self.boxes_norm_xyxy(kind)
        is_swapped = corners[:, :2] > corners[:, 2:]
        first, second = self.width[:, :2], self.width[:, 2:]
        low = np.where(is_swapped, second, first)
        high = np.where(is_swapped, first, second)
        return np.concatenate([low, high], axis=1)


@dataclass(frozen=True, eq=False)
class ReadAnswer:
    """What the answer for one image says; picklable, so that ranks can send it.

    Attributes:
        token_ids: ``[T]``, without the end token.
        truncated: the length limit came before the end token.
        unforced: the grammar never forbade what the model preferred, so free decoding writes the same answer.
        objects: the well-formed objects, in generated order.
        failures: the kind of each malformed piece.
        coord_mass: the probability of the coord vocabulary at each position that emitted a coord token; in the text arm
            the probability of the digits, at each digit of a box.
        curves: the four bin distributions of each object; None if they are not kept.
    """

    image_id: int
    token_ids: Ints
    truncated: bool
    unforced: bool
    objects: Objects
    failures: Sequence[str]
    coord_mass: Floats
    curves: Sequence[tuple[BinCurve, ...]] | None = None


def read_answer(
    answer: "Answer", form: "AnswerFormat", *, size_px: tuple[int, int], categories: CategoryIndex, score: ScoreName
) -> ReadAnswer:
    """Find the objects of an answer: their category, boxes and score. Nothing that was generated is an error.

    Coord tokens give two readings of a box: the emitted bins, and the means of their distributions. For digits, both
    readings are the written number.

    Args:
        answer: what was generated.
        form: the form of the answer.
        size_px: original width and height of the image.
        categories: finds the category that a description names.
        score: the named score of an object.
    """
    has_bins = len(form.number_ids) == NUM_BINS
    written_objects, failures = form.read(answer.ids.tolist(), size_px)
    rows: list[ObjectRow] = []
    for written in written_objects:
        if has_bins:
            places = [number.start for number in written.numbers]
            expected = answer.expected[places].tolist()
            width = answer.width[places].tolist()
            served = answer.served[:, places].tolist()
        else:
            expected = [k / NUM_BINS for k in written.bins]
            width = [0.0] * 4
            served = [expected] * len(TOP_TOKENS)
        row = ObjectRow(
            image_id=answer.image_id,
            desc=written.desc,
            category_id=categories.find(written.desc),
            bins=written.bins,
            expected=expected,
            width=width,
            score=score_of(score, answer.log_probs, written),
            served=served,
        )
        rows.append(row)
    return ReadAnswer(
        image_id=answer.image_id,
        token_ids=answer.ids,
        truncated=answer.truncated,
        unforced=answer.unforced,
        objects=Objects.of(rows),
        failures=failures,
        coord_mass=_coord_mass(answer, written_objects, form.number_ids),
        curves=_curves(answer, written_objects),
    )


def _coord_mass(answer: "Answer", objects: Sequence["WrittenObject"], number_ids: range) -> Floats:
    """Return the probability of the number tokens, at each position that writes a coordinate."""
    if len(number_ids) == NUM_BINS:  # a coord token writes a coordinate wherever it is
        is_number = (answer.ids >= number_ids.start) & (answer.ids < number_ids.stop)
        return answer.coord_mass[is_number]
    if not number_ids:
        return np.zeros(0)
    # Digits also belong to descriptions; only in the boxes of objects are they coordinates.
    places = [number for written in objects for number in written.numbers]
    return np.concatenate([np.zeros(0), *(answer.coord_mass[place] for place in places)])


def _curves(answer: "Answer", objects: Sequence["WrittenObject"]) -> list[tuple[BinCurve, ...]] | None:
    """Return the distributions of each object's coordinates; None if the answer keeps none."""
    probs_TK = answer.probs_TK
    if probs_TK is None:
        return None
    return [tuple(BinCurve.of(probs_TK[number.start]) for number in written.numbers) for written in objects]


def seem_in_pixels(detections: Detections, sizes_px: Mapping[int, tuple[int, int]]) -> bool:
    """Say whether the numbers of answers look like pixels, although each was read as a thousandth of a side.

    In an image of fewer than 1,000 pixels a side, thousandths soon exceed the number of pixels. Pixels never do.

    Args:
        detections: boxes that were made from thousandths, ``[D]``.
        sizes_px: image id -> original width and height.
    """
    sizes = np.array([sizes_px[image_id] for image_id in detections.image_ids.tolist()], np.float64)
    sizes_D12 = sizes.reshape(-1, 1, 2)
    corners_px_D22 = detections.boxes_px_xywh.reshape(-1, 2, 2).cumsum(axis=1)
    written_D22 = np.rint(corners_px_D22 / sizes_D12 * NUM_BINS)
    is_small_D = sizes_D12.max(axis=(1, 2)) < NUM_BINS
    fits_as_pixels = (written_D22 <= sizes_D12)[is_small_D]
    return len(fits_as_pixels) >= _FEWEST_BOXES and bool(fits_as_pixels.all())


def distributions_of(answers: Sequence[ReadAnswer]) -> Distributions:
    """Return the curves of the first objects of each answer that keeps them."""
    images: list[ImageCurves] = []
    for answer in answers:
        if answer.curves is None:
            continue
        objects = answer.objects
        columns = zip(
            objects.descs,
            map(tuple, objects.bins.tolist()),
            map(tuple, objects.expected.tolist()),
            map(tuple, objects.width.tolist()),
            answer.curves,
            strict=True,
        )
        first = [ObjectCurves(*values) for values in itertools.islice(columns, NUM_OBJECTS)]
        images.append(ImageCurves(answer.image_id, tuple(first)))
    return Distributions(NUM_BINS, 1 / UNITS, tuple(images))


def write_objects(path: Path, answers: Sequence[ReadAnswer]) -> None:
    """Write ``objects.jsonl``: all objects of an image in a line, also objects that name no category."""
    lines: list[dict[str, object]] = []
    for answer in answers:
        line: dict[str, object] = {
            "image_id": answer.image_id,
            "objects": _objects_json(answer.objects),
            "failures": answer.failures,
            "truncated": answer.truncated,
        }
        lines.append(line)
    write_text(path, "".join(json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n" for line in lines))


def _objects_json(objects: Objects) -> list[dict[str, object]]:
    columns = zip(
        objects.descs.tolist(),
        objects.category_ids.tolist(),
        objects.is_known.tolist(),
        objects.bins.tolist(),
        objects.expected.tolist(),
        objects.width.tolist(),
        objects.scores.tolist(),
        strict=True,
    )
    return [
        {
            "desc": desc,
            "category_id": category_id if is_known else None,
            "bins": bins,
            "expected": expected,
            "width": width,
            "score": score,
        }
        for desc, category_id, is_known, bins, expected, width, score in columns
    ]


def write_tokens(path: Path, answers: Sequence[ReadAnswer]) -> None:
    """Write ``answers.jsonl``: the tokens of each answer, as ``coordexp evaluate --generations`` reads them."""
    lines: list[dict[str, object]] = []
    for answer in answers:
        reason = "length" if answer.truncated else "stop"
        lines.append({"image_id": answer.image_id, "token_ids": answer.token_ids.tolist(), "finish_reason": reason})
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def score_of(name: ScoreName, log_probs: Floats, written: "WrittenObject") -> float:
    """Return the score of an object.

    Args:
        name: ``coord`` is the geometric mean of the probabilities of its four coordinates (a coordinate in digits has
            the product of its digits'). ``desc`` is the geometric mean over the tokens of its description.
            ``coord_desc`` is 0.7 ``coord`` + 0.3 ``desc``. ``constant`` is 1, so that AP depends on the order of the
            detections.
        log_probs: ``[T]`` of the answer's tokens, over the full vocabulary.
        written: says which tokens write the object.

    Returns:
        A number in [0, 1].
    """
    if name == "constant":
        return 1.0
    log_probs_of_numbers = [math.fsum(log_probs[number]) for number in written.numbers]
    log_probs_of_words = log_probs[written.words]
    coord = math.exp(math.fsum(log_probs_of_numbers) / len(log_probs_of_numbers))
    desc = math.exp(math.fsum(log_probs_of_words) / len(log_probs_of_words))
    if name == "coord":
        return coord
    if name == "desc":
        return desc
    return _COORD_WEIGHT * coord + (1 - _COORD_WEIGHT) * desc


def unread_sentence(decoding: Decoding, metrics: Mapping[str, float], *, form: str) -> str | None:
    """Warn if answers hold text, but not one object that can be read: those are not pictures without objects.

    Args:
        decoding: prefix of the metrics.
        metrics: of the evaluation.
        form: the form of answer that was expected, as a user names it.

    Returns:
        The warning; None if an object was read, or there was no text.
    """
    malformed = metrics.get(f"{decoding}/malformed", 0.0)
    if metrics.get(f"{decoding}/num_objects", 0.0) or not malformed:
        return None
    prefix = f"{decoding}/malformed/"
    counts = {name.removeprefix(prefix): number for name, number in metrics.items() if name.startswith(prefix)}
    kind = max(counts, key=lambda name: counts[name])
    return (
        f"warning: {decoding}: the answers hold not one object that can be read as {form} ({malformed:,.0f} pieces of "
        f"text, most of them {kind}), so AP is 0 for want of reading; are they of another form (--answer)?"
    )


def unknown_sentence(folder: DecodingFolder, decoding: Decoding, metrics: Mapping[str, float]) -> str | None:
    """List descriptions that name no category, if AP is low and at least half of the objects have such descriptions.

    Args:
        folder: where ``unknown.json`` is.
        decoding: prefix of the metrics.
        metrics: of the evaluation.

    Returns:
        A sentence with the most frequent descriptions, or None.
    """
    num_objects = metrics.get(f"{decoding}/num_objects", 0.0)
    num_unknown = metrics.get(f"{decoding}/unknown_category", 0.0)
    highest_ap = max(metrics.get(f"{decoding}/{kind}/AP", 0.0) for kind in BOX_KINDS)
    if not num_unknown or 2 * num_unknown < num_objects or highest_ap >= _LOW:
        return None
    counts = read_model(dict[str, int], folder.unknown, what="descriptions and their counts")
    frequent = ", ".join(show(desc) for desc in list(counts)[:_SHOWN_NAMES])
    num_known = "none" if num_unknown == num_objects else f"{num_objects - num_unknown:,.0f}"
    return f"{decoding}: {num_known} of {num_objects:,.0f} written objects names a category; most frequent: {frequent}"
