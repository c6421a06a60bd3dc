"""What one decoding of a split leaves behind: files and metrics."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from coordexp.coord_tokens.bins import NUM_BINS
from coordexp.data.sample import fold
from coordexp.detection.box_evaluation import BoxEvaluation
from coordexp.detection.coco_eval import published_precision
from coordexp.detection.detections import write_detections
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.metrics import measure
from coordexp.errors import DataError
from coordexp.evaluate.analysis import analyse_boxes
from coordexp.evaluate.distributions import NUM_OBJECTS, UNITS, Distributions, ImageCurves
from coordexp.evaluate.objects import ImageRecord, ObjectTable, write_answers, write_objects
from coordexp.files import write_json
from coordexp.metrics import BOX_KINDS, BoxKind, Decoding, MetricName
from coordexp.runs.folder import DecodingFolder


def write_results(
    folder: DecodingFolder,
    records: Sequence[ImageRecord],
    *,
    decoding: Decoding,
    truth: GroundTruth,
    sizes_px: Mapping[int, tuple[int, int]],
    published: BoxKind | None,
    failure_kinds: Sequence[str],
    details: bool,
) -> dict[str, float]:
    """Write the files of one decoding and return its metrics.

    - ``detections.argmax.json`` and ``detections.expected.json`` in COCO's results format;
    - ``objects.jsonl`` with everything that was generated;
    - ``answers.jsonl`` with the tokens of every answer;
    - ``unknown.json``: descriptions that name no category, most frequent first, with their counts;
    - with ``details`` also ``analysis.json`` and ``distributions.json``.

    Args:
        folder: ``.../constrained`` or ``.../free``.
        records: of every image, by image id.
        decoding: how they were generated.
        truth: annotations of the images over which AP is computed; an image without a record has no detections.
        sizes_px: image id -> original width and height.
        published: the boxes whose AP, AP50 and AP75 are pycocotools' own; our matcher gives the same numbers in a
            fraction of the time, and gives them for the others.
        failure_kinds: each is counted, also where it did not occur.
        details: also write what stands behind the numbers.

    Returns:
        ``{decoding}/{boxes}/AP`` and so on, and the counts; undefined values are absent.
    """
    unmeasured = {record.image_id for record in records} - sizes_px.keys()
    if unmeasured:
        raise DataError(f"image {min(unmeasured)}: its width and height are not given")
    objects = ObjectTable.of(records)
    evaluated: dict[BoxKind, BoxEvaluation] = {}
    # Coordinates that are written as text have no distribution: both kinds of boxes are then one, to the last digit.
    has_one_reading = np.array_equal(objects.boxes_norm_xyxy("argmax"), objects.boxes_norm_xyxy("expected"))
    for kind in BOX_KINDS:
        detections = objects.detections(kind, sizes_px)
        write_detections(folder.detections(kind), detections)
        evaluated[kind] = evaluated["argmax"] if has_one_reading and evaluated else BoxEvaluation(truth, detections)
    write_objects(folder.objects, records)
    write_answers(folder.answers, records)
    unknown = unknown_descriptions(records)
    write_json(folder.unknown, dict(unknown.most_common()), indent=1)
    metrics = {
        str(MetricName(decoding, name)): value for name, value in generation_metrics(records, failure_kinds).items()
    }
    cut_records = [cut_at_repeat(record) for record in records]
    headline = None if published is None else evaluated[published]
    official = {} if headline is None else published_precision(headline.truth, headline.detections)
    for kind, boxes in evaluated.items():
        found = measure(boxes) | (official if boxes is headline else {})
        beside: Mapping[str, float | None] = found
        if cut_records != list(records):
            cut = BoxEvaluation(truth, ObjectTable.of(cut_records).detections(kind, sizes_px))
            beside = {name: cut.average_precision(name) for name in ("AP", "AP50")}
        found |= {f"{name}_cut": value for name in ("AP", "AP50") if (value := beside.get(name)) is not None}
        metrics |= {str(MetricName(decoding, name, kind)): value for name, value in found.items()}
    if details:
        analyse_boxes(evaluated, objects).write(folder.path)
        curves = [
            ImageCurves(record.image_id, record.curves[:NUM_OBJECTS]) for record in records if record.curves is not None
        ]
        Distributions(NUM_BINS, 1 / UNITS, tuple(curves)).write(folder.path)
    return metrics


def in_order(parts: Sequence[Sequence[ImageRecord]], truth: GroundTruth, *, num_images: int) -> list[ImageRecord]:
    """Order the records of all processes by image id: the files do not depend on who made them.

    Raises:
        DataError: if an image is missing, there twice or unknown.
    """
    records = sorted((record for part in parts for record in part), key=lambda record: record.image_id)
    ids = [record.image_id for record in records]
    repeated = {a for a, b in itertools.pairwise(ids) if a == b}
    if repeated:
        raise DataError(f"image {min(repeated)} is evaluated twice; expected each image once")
    unknown = set(ids) - truth.sizes_px.keys()
    if unknown:
        raise DataError(f"{truth.path}: no image has id {min(unknown)}, but it was evaluated")
    if len(records) != num_images:
        raise DataError(f"evaluation returned {len(records)} of {num_images} images; expected each once")
    return records


def generation_metrics(records: Sequence[ImageRecord], failure_kinds: Sequence[str]) -> dict[str, float]:
    """Return what does not depend on the kind of boxes, by name; undefined values are absent.

    - ``duplicate_rate``: share of objects that repeat an earlier one of their answer exactly, see :func:`repeats`.
    - ``longest_repeat``: the most such objects in a row.
    - ``coord_mass``: mean probability of the coord vocabulary where a coord token was emitted.
    """
    failures = Counter(kind for record in records for kind in record.failures)
    num_objects = sum(len(record.objects) for record in records)
    num_pieces = num_objects + failures.total()
    masses = [mass for record in records for mass in record.coord_mass]
    metrics = {
        "num_objects": float(num_objects),
        "malformed": float(failures.total()),
        "malformed_fraction": failures.total() / num_pieces if num_pieces else 0.0,
        "unknown_category": float(unknown_descriptions(records).total()),
        "empty_images": float(sum(not record.objects for record in records)),
        "truncated_images": float(sum(record.truncated for record in records)),
        "truncated_fraction": sum(record.truncated for record in records) / max(1, len(records)),
    }
    if num_objects:
        repeated = [repeats(record) for record in records]
        runs = [sum(run) for flags in repeated for is_one, run in itertools.groupby(flags) if is_one]
        metrics["tokens_per_object"] = sum(record.num_tokens for record in records) / num_objects
        metrics["duplicate_rate"] = sum(runs) / num_objects
        metrics["longest_repeat"] = float(max(runs, default=0))
    metrics |= {f"malformed/{kind}": float(failures[kind]) for kind in failure_kinds}
    return metrics | ({"coord_mass": math.fsum(masses) / len(masses)} if masses else {})


def unknown_descriptions(records: Sequence[ImageRecord]) -> Counter[str]:
    """Count the descriptions that name no category."""
    return Counter(item.desc for record in records for item in record.objects if item.category_id is None)


def repeats(record: ImageRecord) -> list[bool]:
    """Mark the objects of an answer that repeat an earlier one: the description after folding, and all four bins."""
    seen: set[tuple[str, tuple[int, ...]]] = set()
    marked: list[bool] = []
    for item in record.objects:
        what = fold(item.desc), item.bins
        marked.append(what in seen)
        seen.add(what)
    return marked


def cut_at_repeat(record: ImageRecord) -> ImageRecord:
    """Return what is left of an answer that ends before its first repeat; the record itself without one.

    What a model writes behind a token does not change what stands before it.
    """
    marked = repeats(record)
    return replace(record, objects=record.objects[: marked.index(True)]) if True in marked else record
