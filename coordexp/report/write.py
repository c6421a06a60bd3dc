"""The report as an ablation ends with it: printed, written as files, and stored with the ablation in MLflow."""

import re
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import DataError, ResourceError, TrackingError, counted
from coordexp.evaluate.generated_by import generator_of
from coordexp.files import write_text
from coordexp.metrics import BoxKind
from coordexp.report.charts.files import write_plots
from coordexp.report.make_study import make_study
from coordexp.report.page.page import render_page
from coordexp.report.study.artifacts import FINAL_CONSTRAINED, STORED_ANNOTATIONS, Artifacts
from coordexp.report.study.data import ExperimentData, RunRecord, read_by
from coordexp.report.study.inputs import Settings
from coordexp.report.study.load import load_experiment
from coordexp.report.study.study import Study, better_first
from coordexp.report.text.records import to_csv, to_json
from coordexp.report.text.render import render_report, to_latex, to_markdown
from coordexp.report.text.screen import screen_lines
from coordexp.report.text.study_tables import comparison_tables
from coordexp.report.text.tables import markdown_table
from coordexp.runs.folder import ExperimentFolder
from coordexp.shipped import python_command
from coordexp.stages import report_stage
from coordexp.statistics.results import Estimate
from coordexp.tracking import open_tracker
from coordexp.tracking.charts import COLOR_TAG, group_colors
from coordexp.tracking.connection import FileTooLargeError
from coordexp.tracking.store import MAX_TAG_LENGTH, READING

REPORT_FOLDER = ExperimentFolder(Path()).report.name
MAX_ANNOTATIONS_BYTES = 64 * 2**20
_NOT_IN_NAMES = re.compile(r"[^\w.\- ]")


def report_experiment(
    uri: str,
    experiment: str,
    *,
    output: Path,
    console: Console,
    allow_differences: bool = False,
    seeds: Collection[int] | None = None,
    readings: Mapping[str, BoxKind] | None = None,
    everything: bool = False,
) -> None:
    """Write the files of an experiment's report, store them with the ablation in MLflow, and print one screen of it.

    ``output`` is ``RUNS_DIR/EXPERIMENT/report``; ``seeds`` are those shown, where an ablation ended with some whole.
    """
    runs_dir = output.parent.parent
    data = read_by(load_experiment(uri, experiment, runs_dir=runs_dir), readings or {})
    if seeds is not None:
        data = replace(data, runs=tuple(run for run in data.runs if run.seed in seeds))
    settings = Settings(allow_differences=allow_differences)
    study, artifacts = study_of(data, output=output, runs_dir=runs_dir, settings=settings)
    paths = write_report(study, output)
    failure = store_report(study, paths, artifacts)
    where = [] if runs_dir.absolute() == Path("runs").absolute() else ["--runs-dir", str(runs_dir)]
    again = python_command("-m", "coordexp", "report", experiment, *where, "--all")
    print_study(study, paths, console, everything=everything, again=again)
    if failure:
        console.print(failure, markup=False, highlight=False, soft_wrap=True)


def study_of(data: ExperimentData, *, output: Path, runs_dir: Path, settings: Settings) -> tuple[Study, Artifacts]:
    """Study runs, and report how far each stage is.

    Args:
        data: the runs.
        output: the folder of the report, which keeps what MLflow sends.
        runs_dir: the directory that has the folders of experiments.
        settings: how the study is made.

    Returns:
        The study, and the artifacts that it was made from.
    """
    with writing(output):
        artifacts = artifacts_of(data, output=output, runs_dir=runs_dir)
        data = with_generators(data, artifacts)
        study = make_study(data, artifacts, settings, on_progress=report_stage)
    return study, artifacts


def artifacts_of(data: ExperimentData, *, output: Path, runs_dir: Path) -> Artifacts:
    """Return what finds the files of runs; ``output`` keeps what MLflow sends."""
    return Artifacts(data, cache=output / ".artifacts", runs_dir=runs_dir)


def with_generators(data: ExperimentData, artifacts: Artifacts) -> ExperimentData:
    """Return the same runs, each with the engine that wrote its final answers, as the file beside them says."""
    runs: list[RunRecord] = []
    for run in data.runs:
        record = None if run.foreign is not None else artifacts.file(run, FINAL_CONSTRAINED.generated_by)
        runs.append(run if record is None else replace(run, generator=generator_of(record)))
    return replace(data, runs=tuple(runs))


def write_report(study: Study, output: Path) -> list[Path]:
    """Write the files of a report and return their paths, the page first."""
    makers = {".html": render_page, ".md": to_markdown, ".json": to_json, ".csv": to_csv, ".tex": to_latex}
    texts = {output / f"report{suffix}": make for suffix, make in makers.items()}
    with writing(output):
        for num_written, (path, make) in enumerate(texts.items(), start=1):
            write_text(path, make(study))
            report_stage("files written", num_written, len(texts))
        return [*texts, *write_plots(study, output)]


def print_study(study: Study, paths: list[Path], console: Console, *, everything: bool, again: str) -> None:
    """Print a study on one screen, or every table and path of it; ``again`` is the command that does the latter."""
    if everything:
        render_report(study, console)
        print_paths(paths, console)
    else:
        for line in screen_lines(study, page=paths[0], again=again, width=console.width):
            style = "yellow" if line.startswith(("! ", "  ")) else "bold" if line.startswith(study.data.title) else ""
            console.print(Text(line, style), soft_wrap=True)


def print_paths(paths: list[Path], console: Console) -> None:
    console.print("\nWritten:", highlight=False)
    for path in paths:
        console.print(f"  {path}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def writing(output: Path) -> Generator[None]:
    """Make a folder to write to, and say so where that cannot be done."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ResourceError(
            f"the report cannot be written to {output} ({error.strerror}): expected a directory that can be written"
        ) from error


def store_report(study: Study, paths: Sequence[Path], artifacts: Artifacts) -> str:
    """Store a report and its annotations with the ablation it is about, if it is about a single one.

    Returns why that failed, or "": the files are there all the same.
    """
    data = study.data
    if not data.parent_id:
        return ""
    too_large: list[str] = []
    colors = group_colors(data.groups)
    page = f"#/experiments/{data.experiment_id}/runs/{data.parent_id}/artifacts/{REPORT_FOLDER}/report.html"
    try:
        tracker = open_tracker(data.uri, experiment=data.name, artifact_root=None)
        tracker.set_final(data.parent_id, comparison_metrics(study))
        tracker.describe(data.parent_id, description(study, page=page))
        if study.verdict:
            tracker.set_tags(data.parent_id, {"verdict": study.verdict})
        for run in data.trained:
            if run.run_id:  # it has begun
                # Of the numbers that are stored with the ablation now; and the colour that its group has there.
                tracker.set_tags(run.run_id, {READING: run.reading, COLOR_TAG: colors[run.group]})
        files = [(path, REPORT_FOLDER) for path in paths]
        for path, folder in [*files, *_data_files(data, artifacts)]:
            try:
                tracker.log_file(data.parent_id, path, folder)
            except FileTooLargeError as error:  # the smaller ones are stored all the same
                too_large.append(str(error))
    except TrackingError as error:
        return f"the report is not in MLflow: {error}"
    if not too_large:
        return ""
    more = f" (and {counted(len(too_large) - 1, 'more file')})" if len(too_large) > 1 else ""
    return f"the report is in MLflow but for what is too large: {too_large[0]}{more}"


def _data_files(data: ExperimentData, artifacts: Artifacts) -> list[tuple[Path, str]]:
    """Return the annotations, and units and tags of their images, with the folder that they are stored in."""
    annotations = next((path for run in data.runs if (path := artifacts.annotations(run)) is not None), None)
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

    def three(name: str, estimate: Estimate) -> dict[str, float | None]:
        return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}

    found: dict[str, float | None] = {}
    if (comparison := study.comparison) is not None:
        names = {group: _NOT_IN_NAMES.sub("_", group) for group in comparison.groups}
        for group, estimate in comparison.value.items():
            found |= three(f"comparison/{names[group]}/{comparison.metric}", estimate)
        for pair in comparison.pairs:
            lead = f"comparison/{names[pair.a]}_minus_{names[pair.b]}"
            found |= three(f"{lead}/{comparison.metric}", pair.difference) | {f"{lead}/p_holm": pair.p_holm}
    return found


def description(study: Study, *, page: str) -> str:
    """Return what MLflow shows above an ablation: the verdict, where the page is, AP of groups, their differences."""
    text = "\n\n".join(filter(None, (study.verdict, f"[The whole report]({page})")))
    for table in comparison_tables(better_first(study)):  # MLflow would cut those of many groups
        longer = f"{text}\n\n{markdown_table(table)}"
        text = longer if len(longer) <= MAX_TAG_LENGTH else text
    return text
