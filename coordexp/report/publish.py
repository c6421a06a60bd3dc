"""A report -> the ablation's own run in MLflow: the files, and every number of the comparison as a metric."""

import re
from collections.abc import Sequence
from pathlib import Path

from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import DataError
from coordexp.report.study.artifacts import STORED_ANNOTATIONS, Artifacts
from coordexp.report.study.study import Study
from coordexp.runs.folder import ExperimentFolder
from coordexp.statistics.results import Comparison, Convergence, Estimate
from coordexp.tracking import open_tracker

REPORT_FOLDER = ExperimentFolder(Path()).report.name
MAX_ANNOTATIONS_BYTES = 64 * 2**20
_NOT_IN_NAMES = re.compile(r"[^\w.\- ]")


def record_report(study: Study, files: Sequence[Path], artifacts: Artifacts) -> bool:
    """Store a report with the ablation it is about.

    Args:
        study: what was found out.
        files: the report's files.
        artifacts: finds the annotations, which are stored too, so that a report can be made on any machine.

    Returns:
        False if the study is not of one ablation, so that there is no run to store it with.

    Raises:
        TrackingError: if MLflow does not take it.
    """
    data = study.data
    if not data.parent_id:
        return False
    tracker = open_tracker(data.uri, experiment=data.name, artifact_root=None)
    for path in files:
        tracker.log_file(data.parent_id, path, REPORT_FOLDER)
    annotations = next((path for run in data.runs if (path := artifacts.annotations(run)) is not None), None)
    if annotations is not None and annotations.stat().st_size <= MAX_ANNOTATIONS_BYTES and _is_coco(annotations):
        tracker.log_file(data.parent_id, annotations, STORED_ANNOTATIONS)
    tracker.set_final(data.parent_id, comparison_metrics(study))
    if study.verdict:
        tracker.set_tags(data.parent_id, {"verdict": study.verdict})
    return True


def comparison_metrics(study: Study) -> dict[str, float | None]:
    """Return the numbers of the comparison by metric name, e.g. ``comparison/C_minus_A/AP_low``."""
    found: dict[str, float | None] = {}
    if study.comparison is not None:
        found |= _of_comparison(study.comparison)
    if study.convergence is not None:
        found |= _of_convergence(study.convergence)
    return found


def metric_part(name: str) -> str:
    """Return a group's name as MLflow accepts it in the name of a metric."""
    return _NOT_IN_NAMES.sub("_", name)


def _is_coco(path: Path) -> bool:
    """Return whether a file is what a run's parameter calls it: whoever writes to the server chose the path."""
    try:
        read_ground_truth(path)
    except DataError:
        return False
    return True


def _of_comparison(comparison: Comparison) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for group, estimate in comparison.value.items():
        found |= _estimate(f"comparison/{metric_part(group)}/{comparison.metric}", estimate)
    for pair in comparison.pairs:
        lead = f"comparison/{metric_part(pair.a)}_minus_{metric_part(pair.b)}"
        found |= _estimate(f"{lead}/{comparison.metric}", pair.difference)
        found |= {
            f"{lead}/p_swap": pair.p_swap,
            f"{lead}/p_bootstrap": pair.p_bootstrap,
            f"{lead}/p_holm": pair.p_holm,
            f"{lead}/image_std": pair.image_std,
            f"{lead}/seed_std": pair.seed_std,
            f"{lead}/detectable": pair.detectable,
        }
    return found


def _of_convergence(convergence: Convergence) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for group, estimate in convergence.area.items():
        found |= _estimate(f"comparison/{metric_part(group)}/area", estimate)
    for (a, b), estimate in convergence.area_difference.items():
        found |= _estimate(f"comparison/{metric_part(a)}_minus_{metric_part(b)}/area", estimate)
    for fraction, groups in convergence.steps_to.items():
        for group, estimate in groups.items():
            if estimate is not None:
                found |= _estimate(f"comparison/{metric_part(group)}/steps_to_{100 * fraction:.0f}", estimate)
    return found


def _estimate(name: str, estimate: Estimate) -> dict[str, float | None]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
