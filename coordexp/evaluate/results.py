"""What one decoding of a split leaves behind: files and metrics."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coordexp.data.sample import fold
from coordexp.detection.box_evaluation import MatchedBoxes
from coordexp.detection.boxes import Bools
from coordexp.detection.coco_eval import published_precision
from coordexp.detection.detections import write_detections
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.metrics import measure
from coordexp.evaluate.analysis import analyse_boxes
from coordexp.evaluate.answers import ObjectRow, Objects, ReadAnswer, distributions_of, write_objects, write_tokens
from coordexp.evaluate.settings import EvaluationSettings
from coordexp.files import read_json_lines, write_json
from coordexp.metrics import BOX_KINDS, SERVED_AP, TOP_TOKENS, BoxKind
from coordexp.runs.folder import DecodingFolder

_CUT_METRICS = ("AP", "AP50")  # measured a second time, with answers that end before their first repeat
Values = dict[tuple[BoxKind | None, str], float]
"""Kind of boxes and name of a metric -> value. The kind is None if the metric does not depend on it."""


def write_results(
    folder: DecodingFolder,
    answers: Sequence[ReadAnswer],
    truth: GroundTruth,
    sizes_px: Mapping[int, tuple[int, int]],
    *,
    settings: EvaluationSettings,
    published: BoxKind | None,
) -> Values:
    """Write the files of one decoding and return its metrics.

    - ``detections.argmax.json`` and ``detections.expected.json`` in COCO's results format;
    - ``objects.jsonl`` with everything that was generated;
    - ``answers.jsonl`` with the tokens of every answer;
    - ``unknown.json``: descriptions that name no category, most frequent first, with their counts;
    - with ``settings.details`` also ``analysis.json`` and ``distributions.json``.

    Args:
        folder: ``.../constrained`` or ``.../free``.
        answers: one for every image, by image id.
        truth: annotations of the images over which AP is computed; an image without an answer has no detections.
        sizes_px: image id -> original width and height.
        settings: what is asked for.
        published: the kind of boxes whose AP, AP50 and AP75 are pycocotools' own; None for no kind. Our matcher gives
            the same numbers in a fraction of the time, and measures the other kind.

    Returns:
        The metrics. Undefined values are absent. Each kind of failure is counted, also one that did not occur.
    """
    objects = Objects.joined([answer.objects for answer in answers])
    known_objects = objects.rows(objects.is_known)
    # Coordinates that are written as text have no distribution: the two kinds of boxes are then equal to the last bit,
    # and are evaluated once.
    has_one_reading = np.array_equal(known_objects.boxes_norm_xyxy("argmax"), known_objects.boxes_norm_xyxy("expected"))
    evaluated: dict[BoxKind, MatchedBoxes] = {}
    for kind in BOX_KINDS:
        detections = known_objects.detections(kind, sizes_px)
        write_detections(folder.detections(kind), detections)
        evaluated[kind] = evaluated["argmax"] if has_one_reading and evaluated else MatchedBoxes(truth, detections)
    write_objects(folder.objects, answers)
    write_tokens(folder.answers, answers)
    unknown = Counter(objects.descs[~objects.is_known].tolist())
    write_json(folder.unknown, dict(unknown.most_common()), indent=1)

    is_repeat = repeats(objects)
    values: Values = {}
    for name, value in counts(answers, is_repeat, settings.failure_kinds).items():
        values[None, name] = value
    headline = None if published is None else evaluated[published]
    official = {} if headline is None else published_precision(headline.truth, headline.detections)
    before_repeats = cut_at_repeat(objects, is_repeat)
    for kind, boxes in evaluated.items():
        measured = measure(boxes)
        if boxes is headline:
            measured |= official
        # Without a repeat nothing is cut, and the boxes need no second evaluation.
        cut_boxes = MatchedBoxes(truth, before_repeats.detections(kind, sizes_px)) if is_repeat.any() else None
        values |= _values_of_boxes(kind, measured, cut_boxes)
    if settings.details and not has_one_reading:
        values |= served_precision(known_objects, truth, sizes_px)
    if settings.details:
        analyse_boxes(evaluated, known_objects).write(folder.path)
        distributions_of(answers).write(folder.path)
    return values


def _values_of_boxes(kind: BoxKind, measured: Mapping[str, float], cut_boxes: MatchedBoxes | None) -> Values:
    """Name the metrics of one kind of boxes, and add AP of the boxes before a repeat; None if there is no repeat."""
    values: Values = {(kind, name): value for name, value in measured.items()}
    for name in _CUT_METRICS:
        value = measured.get(name) if cut_boxes is None else cut_boxes.average_precision(name)
        if value is not None:
            values[kind, f"{name}_cut"] = value
    return values


def served_precision(objects: Objects, truth: GroundTruth, sizes_px: Mapping[int, tuple[int, int]]) -> Values:
    """Return AP of the expected boxes that the client of a server can compute.

    A server that serves a merged checkpoint returns log probabilities of a few tokens, and no distribution over bins.

    Args:
        objects: of known categories.
        truth: what they are compared with.
        sizes_px: image id -> original width and height.

    Returns:
        AP for each number of likeliest tokens; an undefined AP is absent.
    """
    values: Values = {}
    for num_tokens, name in SERVED_AP.items():
        detections = objects.served_by(num_tokens).detections("expected", sizes_px)
        ap = MatchedBoxes(truth, detections).average_precision("AP")
        if ap is not None:
            values["expected", name] = ap
    return values


def counts(answers: Sequence[ReadAnswer], is_repeat: Bools, failure_kinds: Sequence[str]) -> dict[str, float]:
    """Return the metrics that do not depend on the kind of boxes.

    - ``duplicate_rate``: the fraction of objects that repeat an earlier one of their answer, see :func:`repeats`;
    - ``longest_repeat``: the most such objects in a row;
    - ``coord_mass``: the mean probability of the coord vocabulary where a coord token was emitted.

    Args:
        answers: of all images.
        is_repeat: ``[D]`` of all objects, in the order of the answers.
        failure_kinds: kinds that are counted, also if they did not occur.

    Returns:
        Values by name; undefined ones are absent.
    """
    objects = Objects.joined([answer.objects for answer in answers])
    failures = Counter(kind for answer in answers for kind in answer.failures)
    num_pieces = len(objects) + failures.total()
    num_truncated = sum(answer.truncated for answer in answers)
    values = {
        "num_objects": float(len(objects)),
        "malformed": float(failures.total()),
        "malformed_fraction": failures.total() / num_pieces if num_pieces else 0.0,
        "unknown_category": float(np.count_nonzero(~objects.is_known)),
        "empty_images": float(sum(not len(answer.objects) for answer in answers)),
        "truncated_images": float(num_truncated),
        "truncated_fraction": num_truncated / max(1, len(answers)),
    }
    if len(objects):
        num_tokens = sum(len(answer.token_ids) for answer in answers)
        values["tokens_per_object"] = num_tokens / len(objects)
        values["duplicate_rate"] = np.count_nonzero(is_repeat) / len(objects)
        values["longest_repeat"] = float(_longest_repeat(objects, is_repeat))
    values |= {f"malformed/{kind}": float(failures[kind]) for kind in failure_kinds}
    masses = list(itertools.chain.from_iterable(answer.coord_mass.tolist() for answer in answers))
    if masses:
        values["coord_mass"] = math.fsum(masses) / len(masses)
    return values


def _longest_repeat(objects: Objects, is_repeat: Bools) -> int:
    """Return the most repeats in a row within an answer."""
    keys = zip(objects.image_ids.tolist(), is_repeat.tolist(), strict=True)
    lengths = [0]
    for (_, repeats_earlier), neighbours in itertools.groupby(keys):
        if repeats_earlier:
            lengths.append(len(list(neighbours)))
    return max(lengths)


def repeats(objects: Objects) -> Bools:
    """Mark ``[D]`` objects that repeat an earlier one of their answer: equal folded description, equal four bins."""
    seen: set[tuple[int, str, tuple[int, ...]]] = set()
    is_repeat: list[bool] = []
    for image_id, desc, bins in zip(objects.image_ids.tolist(), objects.descs, objects.bins.tolist(), strict=True):
        key = (image_id, fold(desc), tuple(bins))
        is_repeat.append(key in seen)
        seen.add(key)
    return np.array(is_repeat, np.bool_)


def cut_at_repeat(objects: Objects, is_repeat: Bools) -> Objects:
    """Return the objects that are left if each answer ends before its first repeat."""
    return objects.rows(before_repeat(objects, is_repeat))


def before_repeat(objects: Objects, is_repeat: Bools) -> Bools:
    """Mark ``[D]`` objects that come before the first repeat of their answer.

    They are what the model would have written if it had been stopped there: a token depends on earlier tokens only.
    """
    ended_images: set[int] = set()
    is_before: list[bool] = []
    for image_id, repeats_earlier in zip(objects.image_ids.tolist(), is_repeat.tolist(), strict=True):
        if repeats_earlier:
            ended_images.add(image_id)
        is_before.append(image_id not in ended_images)
    return np.array(is_before, np.bool_)


@dataclass(frozen=True)
class _WrittenObject:
    desc: str
    category_id: int | None
    bins: tuple[int, int, int, int]


@dataclass(frozen=True)
class _ImageObjects:
    image_id: int
    objects: tuple[_WrittenObject, ...]


def detections_before_repeat(path: Path) -> Bools:
    """Mark the detections beside an ``objects.jsonl`` that come before the first repeat of their answer."""
    # Repeats are counted by description and bins. The other columns are filled with zeros, and not looked at.
    no_box = [0.0] * 4
    no_served = [no_box] * len(TOP_TOKENS)
    rows: list[ObjectRow] = []
    for line in read_json_lines(_ImageObjects, path):
        for written in line.objects:
            row = ObjectRow(
                line.image_id, written.desc, written.category_id, written.bins, no_box, no_box, 0.0, no_served
            )
            rows.append(row)
    objects = Objects.of(rows)
    return before_repeat(objects, repeats(objects))[objects.is_known]
