"""How fast the groups of a study learn: AP on the subset that is evaluated during training."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import DataError
from coordexp.files import read_json_lines
from coordexp.metrics import subset_headline
from coordexp.report.records.artifacts import final_detections
from coordexp.report.records.data import RunRecord, consumption
from coordexp.report.study.inputs import Outcome, StudyInputs, few_names
from coordexp.statistics.convergence import convergence
from coordexp.statistics.results import Convergence

_MOST_RESAMPLES = 1000  # each is drawn for every step of every run

CurveFiles = dict[str, dict[int, dict[int, Path]]]
"""Group -> training seed -> step -> detections on the subset."""


@dataclass(frozen=True)
class _Image:
    image_id: int  # of a line of objects.jsonl


def compare_learning(inputs: StudyInputs) -> Outcome[Convergence | None]:
    """Compare how fast groups learn; None if no run was evaluated during training.

    Raises:
        DataError: if the evaluations of some runs are not on this machine, or none says which images it was on.
    """
    detections = _curve_files(inputs)
    if not detections:
        return Outcome(None)
    image_ids = _subset_image_ids(inputs)
    _add_final_evaluations(inputs, detections, image_ids)
    steps = {group: {step for by_step in by_seed.values() for step in by_step} for group, by_seed in detections.items()}
    consumed = consumption(inputs.data, steps)
    curves = convergence(
        inputs.annotations,
        detections,
        image_ids,
        num_images=consumed["num_images"],
        num_supervised_tokens=consumed["num_supervised_tokens"],
        resamples=min(inputs.settings.resamples, _MOST_RESAMPLES),
        seed=inputs.settings.seed,
        units=inputs.units,
        on_progress=inputs.progress("comparing curves"),
    )
    return Outcome(curves)


def _curve_files(inputs: StudyInputs) -> CurveFiles:
    """Return the detections of every evaluation during training.

    Raises:
        DataError: if they are missing for a run that has logged their AP. They stay in a run's folder, and a mean over
            the seeds that are here would be another number on every machine.
    """
    detections: CurveFiles = {}
    lacking: list[str] = []
    for run in inputs.finished:
        files = _files_by_step(inputs, run)
        if files:
            detections.setdefault(run.group, {})[run.seed] = files
        elif _was_evaluated_during_training(run):
            lacking.append(run.name)
    if lacking:
        raise DataError(
            f"the detections of {few_names(lacking)} during training are not on this machine; they stay in the runs' "
            "folders"
        )
    return detections


def _files_by_step(inputs: StudyInputs, run: RunRecord) -> dict[int, Path]:
    evaluations = inputs.artifacts.evaluations(run)
    files = {step: evaluation.detections(run.reading) for step, evaluation in evaluations.items()}
    return {step: path for step, path in files.items() if path.is_file()}


def _was_evaluated_during_training(run: RunRecord) -> bool:
    return any(point.step < run.step for point in run.curves.get(subset_headline(run.reading), ()))


def _subset_image_ids(inputs: StudyInputs) -> list[int]:
    """Return the images of the subset, which is the same in all runs, from the first list of objects."""
    for run in inputs.finished:
        for evaluation in inputs.artifacts.evaluations(run).values():
            if evaluation.objects.is_file():
                return sorted(line.image_id for line in read_json_lines(_Image, evaluation.objects))
    raise DataError("no evaluation during training has left its objects.jsonl, which names the subset's images")


def _add_final_evaluations(inputs: StudyInputs, detections: CurveFiles, image_ids: Sequence[int]) -> None:
    """Add the last point of each curve: the final evaluation, on the whole split, cut down to the subset."""
    truth = read_ground_truth(inputs.annotations)
    for run in inputs.finished:
        files_by_step = detections.get(run.group, {}).get(run.seed)
        final_path = inputs.artifacts.file(run, final_detections(run))
        if files_by_step is not None and final_path is not None:
            files_by_step[run.step] = inputs.artifacts.only_images(final_path, truth, image_ids, run)
