"""The report in MLflow: its files, its annotations and its numbers, with the ablation that it is about."""

import re
from collections.abc import Sequence
from pathlib import Path

from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import DataError, TrackingError, counted
from coordexp.report.records.artifacts import STORED_ANNOTATIONS, Artifacts
from coordexp.report.records.data import ExperimentData
from coordexp.report.study.study import Study, better_first
from coordexp.report.text.study_tables import comparison_tables
from coordexp.report.text.tables import markdown_table
from coordexp.runs.folder import ExperimentFolder
from coordexp.statistics.results import Estimate
from coordexp.tracking import open_tracker
from coordexp.tracking.charts import COLOR_TAG, group_colors
from coordexp.tracking.connection import FileTooLargeError
from coordexp.tracking.store import MAX_TAG_LENGTH, READING, Tracker

REPORT_FOLDER = ExperimentFolder(Path()).report.name
MAX_ANNOTATIONS_BYTES = 64 * 2**20
_NOT_IN_NAMES = re.compile(r"[^\w.\- ]")


def store_report(study: Study, paths: Sequence[Path], artifacts: Artifacts) -> str:
    """Store a report and its annotations with the ablation it is about, if it is about a single one.

    Args:
        study: what is reported.
        paths: the files of the report.
        artifacts: finds the annotations.

    Returns:
        Why that failed, or "": the files are there all the same.
    """
    data = study.data
    if not data.parent_id:
        return ""
    files = [(path, REPORT_FOLDER) for path in paths]
    try:
        tracker = open_tracker(data.uri, experiment=data.name, artifact_root=None)
        _describe(tracker, study)
        files += _data_files(data, artifacts)
        too_large = _log_files(tracker, data.parent_id, files)
    except TrackingError as error:
        return f"the report is not in MLflow: {error}"
    if not too_large:
        return ""
    more = f" (and {counted(len(too_large) - 1, 'more file')})" if len(too_large) > 1 else ""
    return f"the report is in MLflow but for what is too large: {too_large[0]}{more}"


def _describe(tracker: Tracker, study: Study) -> None:
    """Write the numbers, description and verdict of a study to the ablation's run, and readings to those of groups."""
    data = study.data
    page = f"#/experiments/{data.experiment_id}/runs/{data.parent_id}/artifacts/{REPORT_FOLDER}/report.html"
    tracker.set_final(data.parent_id, comparison_metrics(study))
    tracker.describe(data.parent_id, description(study, page=page))
    if study.verdict:
        tracker.set_tags(data.parent_id, {"verdict": study.verdict})
    colors = group_colors(data.groups)
    for run in data.trained:
        if run.run_id:  # it has begun
            # The reading of the numbers that the ablation has now, and the colour of its group in this report.
            tracker.set_tags(run.run_id, {READING: run.reading, COLOR_TAG: colors[run.group]})


def _log_files(tracker: Tracker, run_id: str, files: Sequence[tuple[Path, str]]) -> list[str]:
    """Store files, each in its folder, and return a sentence for each that the server does not take for its size."""
    too_large: list[str] = []
    for path, folder in files:
        try:
            tracker.log_file(run_id, path, folder)
        except FileTooLargeError as error:  # the smaller ones are stored all the same
            too_large.append(str(error))
    return too_large


def _data_files(data: ExperimentData, artifacts: Artifacts) -> list[tuple[Path, str]]:
    """Return the annotations, and units and tags of their images, with the folder that they are stored in."""
    candidates = (artifacts.annotations(run) for run in data.runs)
    annotations = next((path for path in candidates if path is not None), None)
    if annotations is None or annotations.stat().st_size > MAX_ANNOTATIONS_BYTES:
        return []
    try:
        read_ground_truth(annotations)
    except DataError:  # whoever writes to the server chose the path: it may be no such file
        return []
    files = [(annotations, STORED_ANNOTATIONS)]
    image_facts = artifacts.image_facts(data.trained[0])
    if image_facts is not None:
        files.append((image_facts, STORED_ANNOTATIONS))
    return files


def comparison_metrics(study: Study) -> dict[str, float | None]:
    """Return AP of each group and each difference, with their intervals: ``comparison/C_minus_A/AP_low``."""
    comparison = study.comparison
    if comparison is None:
        return {}
    metric = comparison.metric
    names = {group: _NOT_IN_NAMES.sub("_", group) for group in comparison.groups}
    metrics: dict[str, float | None] = {}
    for group, estimate in comparison.value.items():
        metrics |= _with_ends(f"comparison/{names[group]}/{metric}", estimate)
    for pair in comparison.pairs:
        pair_name = f"comparison/{names[pair.a]}_minus_{names[pair.b]}"
        metrics |= _with_ends(f"{pair_name}/{metric}", pair.difference)
        metrics[f"{pair_name}/p_holm"] = pair.p_holm
    return metrics


def _with_ends(name: str, estimate: Estimate) -> dict[str, float | None]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def description(study: Study, *, page: str) -> str:
    """Return what MLflow shows above an ablation: the verdict, where the page is, AP of groups, their differences."""
    text = "\n\n".join(filter(None, (study.verdict, f"[The whole report]({page})")))
    for table in comparison_tables(better_first(study)):
        longer = f"{text}\n\n{markdown_table(table)}"
        if len(longer) <= MAX_TAG_LENGTH:  # MLflow would cut the tables of many groups
            text = longer
    return text
