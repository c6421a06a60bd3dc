"""What one decoding of a split leaves behind: files and metrics."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coordexp.data.sample import fold
from coordexp.detection.box_evaluation import BoxEvaluation
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

Values = dict[tuple[BoxKind | None, str], float]
"""Kind of boxes and name of a metric -> value; no kind where it does not depend on them."""


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

    Undefined values are absent; each kind of failure is counted, also where it did not occur.

    Args:
        folder: ``.../constrained`` or ``.../free``.
        answers: of every image, by image id.
        truth: annotations of the images over which AP is computed; an image without an answer has no detections.
        sizes_px: image id -> original width and height.
        settings: what is asked for.
        published: the boxes whose AP, AP50 and AP75 are pycocotools' own; our matcher gives the same numbers in a
            fraction of the time, and gives them for the others.
    """
    objects = Objects.joined([answer.objects for answer in answers])
    evaluated: dict[BoxKind, BoxEvaluation] = {}
    # Coordinates that are written as text have no distribution: both kinds of boxes are then one, to the last digit.
    known = objects.rows(objects.is_known)
    has_one_reading = np.array_equal(known.boxes_norm_xyxy("argmax"), known.boxes_norm_xyxy("expected"))
    for kind in BOX_KINDS:
        detections = known.detections(kind, sizes_px)
        write_detections(folder.detections(kind), detections)
        evaluated[kind] = evaluated["argmax"] if has_one_reading and evaluated else BoxEvaluation(truth, detections)
    write_objects(folder.objects, answers)
    write_tokens(folder.answers, answers)
    unknown = Counter(objects.descs[~objects.is_known].tolist())
    write_json(folder.unknown, dict(unknown.most_common()), indent=1)
    is_repeat = repeats(objects)
    found: Values = {(None, name): value for name, value in counts(answers, is_repeat, settings.failure_kinds).items()}
    cut = cut_at_repeat(objects, is_repeat)
    headline = None if published is None else evaluated[published]
    official = {} if headline is None else published_precision(headline.truth, headline.detections)
    for kind, boxes in evaluated.items():
        measured = measure(boxes) | (official if boxes is headline else {})
        beside: Mapping[str, float | None] = measured
        if is_repeat.any():
            of_cut = BoxEvaluation(truth, cut.detections(kind, sizes_px))
            beside = {name: of_cut.average_precision(name) for name in ("AP", "AP50")}
        found |= {(kind, name): value for name, value in measured.items()}
        found |= {(kind, f"{name}_cut"): value for name in ("AP", "AP50") if (value := beside.get(name)) is not None}
    if settings.details and not has_one_reading:
        found |= served_precision(known, truth, sizes_px)
    if settings.details:
        analyse_boxes(evaluated, known).write(folder.path)
        distributions_of(answers).write(folder.path)
    return found


def served_precision(objects: Objects, truth: GroundTruth, sizes_px: Mapping[int, tuple[int, int]]) -> Values:
    """Return AP of the expected boxes that a client of a server computes from the likeliest tokens alone.

    Whoever serves a merged checkpoint gets no distribution over the bins, but log probabilities of a few tokens.

    Args:
        objects: of known categories.
        truth: what they are compared with.
        sizes_px: image id -> original width and height.
    """
    found: Values = {}
    for num_tokens, name in SERVED_AP.items():
        detections = objects.served_by(num_tokens).detections("expected", sizes_px)
        value = BoxEvaluation(truth, detections).average_precision("AP")
        if value is not None:
            found["expected", name] = value
    return found


def counts(answers: Sequence[ReadAnswer], is_repeat: Bools, failure_kinds: Sequence[str]) -> dict[str, float]:
    """Return what does not depend on the kind of boxes, by name; undefined values are absent.

    - ``duplicate_rate``: share of objects that repeat an earlier one of their answer exactly, see :func:`repeats`.
    - ``longest_repeat``: the most such objects in a row.
    - ``coord_mass``: mean probability of the coord vocabulary where a coord token was emitted.
    """
    objects = Objects.joined([answer.objects for answer in answers])
    failures = Counter(kind for answer in answers for kind in answer.failures)
    num_pieces = len(objects) + failures.total()
    masses = [mass for answer in answers for mass in answer.coord_mass.tolist()]
    num_truncated = sum(answer.truncated for answer in answers)
    found = {
        "num_objects": float(len(objects)),
        "malformed": float(failures.total()),
        "malformed_fraction": failures.total() / num_pieces if num_pieces else 0.0,
        "unknown_category": float(np.count_nonzero(~objects.is_known)),
        "empty_images": float(sum(not len(answer.objects) for answer in answers)),
        "truncated_images": float(num_truncated),
        "truncated_fraction": num_truncated / max(1, len(answers)),
    }
    if len(objects):
        by_image = zip(objects.image_ids.tolist(), is_repeat.tolist(), strict=True)
        runs = [len(list(run)) for (_, is_one), run in itertools.groupby(by_image) if is_one]
        found["tokens_per_object"] = sum(len(answer.token_ids) for answer in answers) / len(objects)
        found["duplicate_rate"] = np.count_nonzero(is_repeat) / len(objects)
        found["longest_repeat"] = float(max(runs, default=0))
    found |= {f"malformed/{kind}": float(failures[kind]) for kind in failure_kinds}
    return found | ({"coord_mass": math.fsum(masses) / len(masses)} if masses else {})


def repeats(objects: Objects) -> Bools:
    """Mark objects that repeat an earlier one of their answer: the description after folding, and all four bins."""
    seen: set[tuple[int, str, tuple[int, ...]]] = set()
    marked: list[bool] = []
    for image_id, desc, bins in zip(objects.image_ids.tolist(), objects.descs, objects.bins.tolist(), strict=True):
        what = image_id, fold(desc), tuple(bins)
        marked.append(what in seen)
        seen.add(what)
    return np.array(marked, np.bool_)


def cut_at_repeat(objects: Objects, is_repeat: Bools) -> Objects:
    """Return what is left of answers that end before their first repeat."""
    return objects.rows(before_repeat(objects, is_repeat))


def before_repeat(objects: Objects, is_repeat: Bools) -> Bools:
    """Mark objects that stand before the first repeat of their answer.

    What a model writes behind a token does not change what stands before it.
    """
    has_ended: set[int] = set()
    is_left: list[bool] = []
    for image_id, is_one in zip(objects.image_ids.tolist(), is_repeat.tolist(), strict=True):
        if is_one:
            has_ended.add(image_id)
        is_left.append(image_id not in has_ended)
    return np.array(is_left, np.bool_)


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
    """Mark the detections beside an ``objects.jsonl`` that stand before the first repeat of their answer."""
    # What repeats are counted by: description and bins. The other columns are not looked at.
    no_box = [0.0] * 4
    no_served = [no_box] * len(TOP_TOKENS)
    rows: list[ObjectRow] = []
    for line in read_json_lines(_ImageObjects, path):
        for item in line.objects:
            rows.append((line.image_id, item.desc, item.category_id, item.bins, no_box, no_box, 0.0, no_served))
    objects = Objects.of(rows)
    return before_repeat(objects, repeats(objects))[objects.is_known]
