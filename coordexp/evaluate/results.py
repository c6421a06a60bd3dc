"""What one decoding of a split leaves behind: files and metrics."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from coordexp.coord_tokens.bins import NUM_BINS
from coordexp.data.sample import fold
from coordexp.detection.box_evaluation import BoxEvaluation
from coordexp.detection.boxes import iou, to_boxes_px_xywh
from coordexp.detection.coco_eval import published_precision
from coordexp.detection.detections import write_detections
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.metrics import measure
from coordexp.errors import DataError
from coordexp.evaluate.analysis import analyse_boxes
from coordexp.evaluate.distributions import NUM_OBJECTS, UNITS, Distributions, ImageCurves
from coordexp.evaluate.objects import DetectedObject, ImageRecord, ObjectTable, write_answers, write_objects
from coordexp.files import write_json
from coordexp.metrics import BOX_KINDS, STOP_MARGINS, BoxKind, Decoding, MetricName
from coordexp.runs.folder import DecodingFolder

_DUPLICATE_IOU = 0.9


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
    stopped, num_stopped = stopped_at_repeats(records)
    metrics[str(MetricName(decoding, "duplicate_stops"))] = float(num_stopped)
    headline = None if published is None else evaluated[published]
    official = {} if headline is None else published_precision(headline.truth, headline.detections)
    for kind, boxes in evaluated.items():
        found = measure(boxes) | (official if boxes is headline else {})
        if num_stopped:
            cut = BoxEvaluation(truth, ObjectTable.of(stopped).detections(kind, sizes_px))
            found_cut = {name: cut.average_precision(name) for name in ("AP", "AP50")}
        else:
            found_cut = {name: found.get(name) for name in ("AP", "AP50")}
        found |= {f"{name}_duplicate_stop": value for name, value in found_cut.items() if value is not None}
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

    - ``duplicates``: objects with the description, after folding, of an earlier object of their image
      and an IoU above 0.9 with it (arg-max boxes, as emitted).
    - ``stop_margin/...``: mean log-odds of another object against the end, by the objects that stand there already.
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
        "duplicates": float(num_duplicates(record.objects for record in records)),
    }
    if num_objects:
        metrics["tokens_per_object"] = sum(record.num_tokens for record in records) / num_objects
    for name, (first, last) in STOP_MARGINS.items():
        margins = [margin for record in records for margin in record.stop_margins[first:last]]
        if margins:
            metrics[name] = math.fsum(margins) / len(margins)
    metrics |= {f"malformed/{kind}": float(failures[kind]) for kind in failure_kinds}
    return metrics | ({"coord_mass": math.fsum(masses) / len(masses)} if masses else {})


def unknown_descriptions(records: Sequence[ImageRecord]) -> Counter[str]:
    """Count the descriptions that name no category."""
    return Counter(item.desc for record in records for item in record.objects if item.category_id is None)


def stopped_at_repeats(records: Sequence[ImageRecord]) -> tuple[list[ImageRecord], int]:
    """Return what answers would be if an object that repeats the one before it ended them, and how many it ends.

    What a model writes behind a token does not change what stands before it, so a cut of the answer is the answer.
    """
    cut: list[ImageRecord] = []
    for record in records:
        pairs = itertools.pairwise(record.objects)
        stop = next((at for at, pair in enumerate(pairs, start=1) if num_duplicates([pair])), None)
        cut.append(record if stop is None else replace(record, objects=record.objects[:stop]))
    return cut, sum(len(a.objects) < len(b.objects) for a, b in zip(cut, records, strict=True))


def num_duplicates(images: Iterable[Sequence[DetectedObject]]) -> int:
    """Count objects that repeat an earlier one of their image: the same description after folding, IoU above 0.9."""
    pairs: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    later: list[int] = []  # which object of all is the later one of a pair
    number = 0
    for objects in images:
        alike: defaultdict[str, list[DetectedObject]] = defaultdict(list)
        for item in objects:
            earlier = alike[fold(item.desc)]
            pairs.extend((item.bins, other.bins) for other in earlier)
            later.extend([number] * len(earlier))
            earlier.append(item)
            number += 1
    if not pairs:
        return 0
    # In bins, which gives the IoU that pixels give.
    boxes = to_boxes_px_xywh(np.array(pairs, np.float64).reshape(-1, 4), np.ones((1, 2))).reshape(-1, 2, 4)
    # A box without area has no IoU, but can be the same.
    repeats = (iou(boxes[:, 0], boxes[:, 1]) > _DUPLICATE_IOU) | (boxes[:, 0] == boxes[:, 1]).all(axis=1)
    return len(np.unique(np.array(later)[repeats]))
