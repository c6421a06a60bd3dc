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
from typing import TYPE_CHECKING

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
_FEWEST_BOXES = 10  # before anything is said about the scale of a model's coordinates
_COORD_WEIGHT = 0.7
_LOW = 0.05  # an AP below which one wants to know what is written in place of the names of categories
_SHOWN_NAMES = 5
_WRITTEN = ("bins", "expected", "width", "score")  # of an object in objects.jsonl
ObjectRow = tuple[
    int, str, int | None, Sequence[int], Sequence[float], Sequence[float], float, Sequence[Sequence[float]]
]
"""Image id, description, category or None, bins, expected coordinates, widths, score, expected coordinates from the
likeliest tokens alone."""


@dataclass(frozen=True, eq=False)
class Objects:
    """Well-formed objects; row ``i`` of every column is one object.

    Attributes:
        descs: ``[D]`` descriptions as written.
        category_ids: ``[D]`` the category that the description names; 0 where ``is_known`` is false.
        is_known: ``[D]`` whether it names one.
        bins: ``[D, 4]`` x1, y1, x2, y2 in thousandths of the image side, as emitted; corners may be swapped. A bin of
            ours is at most 999; a model that answers in JSON may say 1000, the border itself.
        expected: ``[D, 4]`` expected coordinates at the same positions, as fractions of the image side; where
            coordinates are written as text, those of ``bins``.
        width: ``[D, 4]`` standard deviations of the bin distributions there, in bins; 0 where coordinates are text.
        scores: ``[D]`` the named score of the evaluation.
        served: ``[D, C, 4]`` expected coordinates from the likeliest tokens alone, for each number of ``TOP_TOKENS``;
            where coordinates are written as text, those of ``bins``.
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
        columns = zip(*rows, strict=True) if rows else ((),) * 8
        image_ids, descs, category_ids, bins, expected, width, scores, served = columns
        return cls(
            np.array(image_ids, np.int64),
            np.array(descs, np.object_),
            np.array([key or 0 for key in category_ids], np.int64),
            np.array([key is not None for key in category_ids], np.bool_),
            np.array(bins, np.int64).reshape(-1, 4),
            np.array(expected, np.float64).reshape(-1, 4),
            np.array(width, np.float64).reshape(-1, 4),
            np.array(scores, np.float64),
            np.array(served, np.float64).reshape(len(rows), -1, 4) if rows else np.zeros((0, len(TOP_TOKENS), 4)),
        )

    @classmethod
    def joined(cls, parts: "Sequence[Objects]") -> "Objects":
        columns = zip(*(vars(part).values() for part in parts or [cls.of([])]), strict=True)
        return cls(*map(np.concatenate, columns))

    def __len__(self) -> int:
        return len(self.scores)

    def rows(self, rows: Ints | Bools) -> "Objects":
        return Objects(*(column[rows] for column in vars(self).values()))

    def boxes_norm_xyxy(self, kind: BoxKind) -> Floats:
        """Return ``[D, 4]`` boxes in fractions of the image's sides; corners may be swapped."""
        return self.bins / NUM_BINS if kind == "argmax" else self.expected

    def detections(self, kind: BoxKind, sizes_px: Mapping[int, tuple[int, int]]) -> Detections:
        """Return those of known categories as detections, in pixels of the original images, whose sizes these are."""
        known = self.rows(self.is_known)
        sizes = np.array([sizes_px[image_id] for image_id in known.image_ids.tolist()], np.float64).reshape(-1, 2)
        boxes = to_boxes_px_xywh(known.boxes_norm_xyxy(kind), sizes)
        return Detections(known.image_ids, known.category_ids, boxes, known.scores)

    def served_by(self, num_tokens: int) -> "Objects":
        """Return the same objects, expected coordinates taken from so many likeliest tokens; one of ``TOP_TOKENS``."""
        return replace(self, expected=self.served[:, TOP_TOKENS.index(num_tokens)])

    def ordered_width(self, kind: BoxKind) -> Floats:
        """Return the widths in the order of the box's ordered corners: swapped corners swap theirs."""
        corners = self.boxes_norm_xyxy(kind)
        swapped = corners[:, :2] > corners[:, 2:]
        low, high = self.width[:, :2], self.width[:, 2:]
        return np.concatenate([np.where(swapped, high, low), np.where(swapped, low, high)], axis=1)


@dataclass(frozen=True, eq=False)
class ReadAnswer:
    """What the answer for one image says; picklable, so that ranks can send it.

    Attributes:
        token_ids: ``[T]``, the end token excluded.
        truncated: the length limit came before the end token.
        unforced: the grammar never forbade what the model preferred, so that free decoding writes the same.
        objects: the well-formed ones, in generated order.
        failures: the kind of each malformed piece.
        coord_mass: the probability of the coord vocabulary at each position that emitted a coord token; in the text arm
            that of the digits at each digit of a box.
        curves: the four bin distributions of each object, where they are kept.
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

    Coord tokens give two readings of a box, that of the emitted bins and that of their distributions; digits give the
    written number alone, which then stands for both.
    """
    has_bins = len(form.number_ids) == NUM_BINS
    objects, failures = form.read(answer.ids.tolist(), size_px)
    rows: list[ObjectRow] = []
    for item in objects:
        places = [number.start for number in item.numbers]
        expected = answer.expected[places].tolist() if has_bins else [k / NUM_BINS for k in item.bins]
        width = answer.width[places].tolist() if has_bins else [0.0] * 4
        served = (
            answer.served[:, places].tolist() if has_bins else [[k / NUM_BINS for k in item.bins]] * len(TOP_TOKENS)
        )
        object_score = score_of(score, answer.log_probs, item)
        category_id = categories.find(item.desc)
        rows.append((answer.image_id, item.desc, category_id, item.bins, expected, width, object_score, served))
    if has_bins:  # at every token that carries a number; digits do so within a box alone
        is_number = (answer.ids >= form.number_ids.start) & (answer.ids < form.number_ids.stop)
        coord_mass = answer.coord_mass[is_number]
    else:
        in_boxes = [answer.coord_mass[at] for item in objects for at in item.numbers if form.number_ids]
        coord_mass = np.concatenate([np.zeros(0), *in_boxes])
    probs_TK, curves = answer.probs_TK, None
    if probs_TK is not None:
        curves = [tuple(BinCurve.of(probs_TK[at.start]) for at in item.numbers) for item in objects]
    return ReadAnswer(
        image_id=answer.image_id,
        token_ids=answer.ids,
        truncated=answer.truncated,
        unforced=answer.unforced,
        objects=Objects.of(rows),
        failures=failures,
        coord_mass=coord_mass,
        curves=curves,
    )


def seem_in_pixels(detections: Detections, sizes_px: Mapping[int, tuple[int, int]]) -> bool:
    """Say whether the numbers of answers look like pixels, although each was read as a thousandth of a side.

    In images of less than 1,000 pixels a side, thousandths soon exceed the number of pixels; pixels never do.
    """
    sizes = np.array([sizes_px[image_id] for image_id in detections.image_ids.tolist()], np.float64).reshape(-1, 1, 2)
    corners_px = detections.boxes_px_xywh.reshape(-1, 2, 2).cumsum(axis=1)
    in_small_images = sizes.max(axis=(1, 2)) < NUM_BINS
    fit_as_pixels = (np.rint(corners_px / sizes * NUM_BINS) <= sizes)[in_small_images]
    return len(fit_as_pixels) >= _FEWEST_BOXES and bool(fit_as_pixels.all())


def distributions_of(answers: Sequence[ReadAnswer]) -> Distributions:
    """Return the curves of the first objects of each answer that keeps them."""
    images: list[ImageCurves] = []
    for answer in answers:
        if answer.curves is not None:
            found = answer.objects
            boxes = (map(tuple, column.tolist()) for column in (found.bins, found.expected, found.width))
            items = zip(found.descs, *boxes, answer.curves, strict=True)
            kept = tuple(ObjectCurves(*item) for item in itertools.islice(items, NUM_OBJECTS))
            images.append(ImageCurves(answer.image_id, kept))
    return Distributions(NUM_BINS, 1 / UNITS, tuple(images))


def write_objects(path: Path, answers: Sequence[ReadAnswer]) -> None:
    """Write ``objects.jsonl``: all objects of an image in a line, also those that name no category."""
    lines: list[dict[str, object]] = []
    for answer in answers:
        items: list[dict[str, object]] = []
        objects = answer.objects
        columns = (objects.descs, objects.category_ids, objects.is_known)
        numbers = (objects.bins, objects.expected, objects.width, objects.scores)
        for desc, category_id, is_known, *values in zip(*(c.tolist() for c in (*columns, *numbers)), strict=True):
            item: dict[str, object] = {"desc": desc, "category_id": category_id if is_known else None}
            items.append(item | dict(zip(_WRITTEN, values, strict=True)))
        about = {"failures": answer.failures, "truncated": answer.truncated}
        lines.append({"image_id": answer.image_id, "objects": items, **about})
    write_text(path, "".join(json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n" for line in lines))


def write_tokens(path: Path, answers: Sequence[ReadAnswer]) -> None:
    """Write ``answers.jsonl``: the tokens of each answer, as ``coordexp evaluate --generations`` reads them."""
    lines: list[dict[str, object]] = []
    for answer in answers:
        reason = "length" if answer.truncated else "stop"
        lines.append({"image_id": answer.image_id, "token_ids": answer.token_ids.tolist(), "finish_reason": reason})
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def score_of(name: ScoreName, log_probs: Floats, item: "WrittenObject") -> float:
    """Return the score of an object in [0, 1], from log probabilities over the full vocabulary.

    ``coord``: the geometric mean probability of its four coordinates, where one in digits has the probability of all of
    them; ``desc``: that of its description's tokens; ``coord_desc``: 0.7 and 0.3 of both; ``constant``: 1, so that AP
    depends on the order of the detections.
    """
    if name == "constant":
        return 1.0
    coord = math.exp(math.fsum(math.fsum(log_probs[at]) for at in item.numbers) / len(item.numbers))
    desc = math.exp(math.fsum(log_probs[item.words]) / len(log_probs[item.words]))
    return {"coord": coord, "desc": desc, "coord_desc": _COORD_WEIGHT * coord + (1 - _COORD_WEIGHT) * desc}[name]


def unread_sentence(decoding: Decoding, metrics: Mapping[str, float], *, form: str) -> str | None:
    """Say that answers hold text and not one object that can be read: those are not pictures without objects."""
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
    """Say which descriptions name no category, where most objects have such a one and AP is low; else None."""
    total, unknown = (metrics.get(f"{decoding}/{name}", 0.0) for name in ("num_objects", "unknown_category"))
    if not unknown or 2 * unknown < total or any(metrics.get(f"{decoding}/{kind}/AP", 0) >= _LOW for kind in BOX_KINDS):
        return None
    names = read_model(dict[str, int], folder.unknown, what="descriptions and their counts")
    how_many = "none" if unknown == total else f"{total - unknown:,.0f}"
    frequent = ", ".join(show(name) for name in list(names)[:_SHOWN_NAMES])
    return f"{decoding}: {how_many} of {total:,.0f} written objects names a category; most frequent: {frequent}"
