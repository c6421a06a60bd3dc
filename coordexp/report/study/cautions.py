"""What a reader of the verdict must know beside it: cautions in front of it, and what it leaves out behind it."""

import contextlib
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from coordexp.data.splits.chosen import chosen_sentence
from coordexp.detection.box_evaluation import MatchedBoxes
from coordexp.detection.detections import Detections, read_detections
from coordexp.detection.ground_truth import GroundTruth, read_ground_truth
from coordexp.detection.precision.average_precision import AVERAGE_PRECISIONS
from coordexp.detection.precision.fair_order import in_fair_order
from coordexp.errors import CoordExpError
from coordexp.evaluate.answers import unknown_sentence
from coordexp.metrics import DECODINGS, Decoding
from coordexp.report.records.data import RunRecord
from coordexp.report.study.about import Fairness, writes_digits
from coordexp.report.study.inputs import StudyInputs, few_names
from coordexp.report.study.tuned import tuning_lead, tuning_of
from coordexp.runs.folder import RunFolder
from coordexp.statistics.protocols import Protocols, contrary_sentences
from coordexp.statistics.readings import ReadingName, reading_sentence
from coordexp.statistics.results import Comparison
from coordexp.statistics.verdict import FILES, has_learned, verdict

_MANY_IMAGES = 0.1  # of all: a file without a box on so many that another has may not have seen them
_FEW_IMAGES = 2  # on so few, a detector may well have found nothing


def find_cautions(inputs: StudyInputs) -> tuple[str, ...]:
    """Return what may decide the comparison beside the losses or detectors, a sentence each.

    None if a file of detections cannot be read: the comparison names that file.
    """
    with contextlib.suppress(CoordExpError):
        return (*_digits_caution(inputs), *_box_cautions(inputs))
    return ()


def whole_verdict(
    inputs: StudyInputs,
    readings: Mapping[ReadingName, Comparison],
    fairness: Fairness | None,
    cautions: Sequence[str],
    protocols: Protocols | None,
) -> str:
    """Return the verdict with what belongs around it: a reader may take the sentence from here alone.

    Args:
        inputs: of the study.
        readings: the comparison under each reading, each group's own among them; "" is returned if there are none.
        fairness: what differs between the runs; None for files of detections alone.
        cautions: what stands in front.
        protocols: the same detections as published tables measure them, if that was done.
    """
    if not readings:
        return ""
    comparison = readings["own"]
    contrary = [] if protocols is None else contrary_sentences(protocols)
    if fairness is None:
        return " ".join([*cautions, verdict(comparison, FILES), *contrary])

    leads = [*_tuning_leads(inputs, comparison), *cautions]
    chosen = chosen_sentence(inputs.annotations)
    if chosen:
        leads.append(f"{chosen}.")
    if fairness.undeclared:
        leads.append(f"These runs differ in more than the declared factor ({', '.join(fairness.undeclared)}).")
    compared_names = {f"{group}-s{seed}" for group, seeds in comparison.seeds.items() for seed in seeds}
    absent_names = [run.name for run in inputs.data.runs if run.name not in compared_names]
    if absent_names:
        leads.append(f"Without {few_names(absent_names)}:")
    under_readings = reading_sentence(readings) if has_learned(comparison, *comparison.groups) else ""
    sentences = [*leads, verdict(comparison), under_readings, *contrary, *_unknown_names(inputs)]
    return " ".join(filter(None, sentences))


def _tuning_leads(inputs: StudyInputs, comparison: Comparison) -> list[str]:
    """Return that the groups were tuned; a record that cannot be read is said where the tuning is shown."""
    with contextlib.suppress(CoordExpError):
        record = tuning_of(inputs.data, inputs.artifacts)
        if record is not None:
            return [tuning_lead(record, comparison.groups)]
    return []


def _unknown_names(inputs: StudyInputs) -> list[str]:
    """Return what runs write in place of categories, for each decoding the first run whose AP is low for that."""
    sentences: list[str] = []
    for decoding in DECODINGS:
        for run in inputs.compared:
            sentence = _unknown_names_of(run, inputs.artifacts.run_dir(run), decoding)
            if sentence:
                sentences.append(f"{run.name}, {sentence}.")
                break
    return sentences


def _unknown_names_of(run: RunRecord, run_dir: Path | None, decoding: Decoding) -> str | None:
    if run_dir is None:
        return None
    evaluation = RunFolder(run_dir).evaluation("final").decoding(decoding)
    return unknown_sentence(evaluation, decoding, run.metrics) if evaluation.unknown.is_file() else None


def _digits_caution(inputs: StudyInputs) -> list[str]:
    """Warn that some groups write coordinates as digits and others do not."""
    writes_in_digits = {
        run.group: writes_digits(run, inputs.artifacts) for run in inputs.compared if run.foreign is None
    }
    if len(set(writes_in_digits.values())) < 2:
        return []
    named = ", ".join(group for group, is_in_digits in writes_in_digits.items() if is_in_digits)
    return [
        f"{named} writes coordinates in digits, which the base may have learned before this training: a ceiling, and "
        "no finding about a loss."
    ]


def _box_cautions(inputs: StudyInputs) -> list[str]:
    """Warn of equal scores, whose order may make a winner, and of files that have not seen all images."""
    truth = read_ground_truth(inputs.annotations)
    runs = {run.name: run for run in inputs.compared}
    shown_names: dict[str, str] = {}
    detections: dict[str, Detections] = {}
    for name, run in runs.items():
        paths_by_seed = inputs.own_detections[run.group]
        shown_names[name] = run.group if len(paths_by_seed) == 1 else name
        detections[name] = read_detections(paths_by_seed[run.seed], truth)
    images_with_boxes = {name: np.unique(boxes.image_ids) for name, boxes in detections.items()}
    sentences: list[str] = []
    partial_sentences: list[str] = []
    for name, run in runs.items():
        boxes = detections[name]
        if run.foreign is None and in_fair_order(truth, boxes) is not boxes:
            sentences.append(
                f"{boxes.num_tied} of {len(boxes)} boxes of {shown_names[name]} share a score with another: "
                "its logged AP depends on the order in which they were written. The comparison takes them by their "
                "coordinates, so that no order makes a winner."
            )
        if run.foreign is None:
            continue  # a run of ours has seen every image
        num_lacking: dict[str, int] = {}  # images on which another group has boxes and this file has none
        for rival_name, rival in runs.items():
            if rival.group != run.group:
                lacking = np.setdiff1d(images_with_boxes[rival_name], images_with_boxes[name])
                num_lacking[rival_name] = len(lacking)
        most = max(num_lacking, key=lambda rival_name: num_lacking[rival_name], default=name)
        if num_lacking.get(most, 0) > max(_FEW_IMAGES, _MANY_IMAGES * len(truth.sizes_px)):
            partial_sentences.append(
                f"{shown_names[name]} has no box on {num_lacking[most]} of "
                f"{inputs.counted_images(list(truth.sizes_px))}, which {shown_names[most]} has: was it run on a part?"
            )
    if partial_sentences:
        by_name = {shown_names[name]: boxes for name, boxes in detections.items()}
        partial_sentences.append(_on_common_images(inputs, truth, by_name))
        sentences.append(" ".join(partial_sentences))
    return sentences


def _on_common_images(inputs: StudyInputs, truth: GroundTruth, detections: Mapping[str, Detections]) -> str:
    """Return AP of each file on the images on which all of them have boxes."""
    image_sets = [np.unique(boxes.image_ids) for boxes in detections.values()]
    common_ids = functools.reduce(np.intersect1d, image_sets).tolist()
    ap_texts: list[str] = []
    for name, boxes in detections.items():
        table = MatchedBoxes(truth, boxes).table_on_images(common_ids)
        ap = table.average_precision(AVERAGE_PRECISIONS["AP"])
        if ap is not None:
            ap_texts.append(f"{name} {ap:.4f}")
    if not ap_texts:
        return "There is no image on which all have boxes."
    return f"On the {inputs.counted_images(common_ids)} where all have boxes, AP is {', '.join(ap_texts)}."
