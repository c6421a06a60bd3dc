"""The report as an ablation ends with it: printed, written as files, and stored with the ablation in MLflow."""

from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from coordexp.errors import ResourceError, TrackingError
from coordexp.files import write_text
from coordexp.report.charts.study_charts import write_plots
from coordexp.report.page.page import render_page
from coordexp.report.publish import record_report
from coordexp.report.study.artifacts import Artifacts
from coordexp.report.study.cache import StatisticsCache
from coordexp.report.study.data import ExperimentData
from coordexp.report.study.load import load_experiment
from coordexp.report.study.make import OnProgress, Settings, make_study
from coordexp.report.study.study import Study
from coordexp.report.text.export import to_csv, to_json, to_latex
from coordexp.report.text.render import render_report, to_markdown

STATISTICS = "statistics.json"


def report_experiment(
    uri: str,
    experiment: str,
    *,
    output: Path,
    console: Console,
    allow_differences: bool = False,
    seeds: Collection[int] | None = None,
) -> None:
    """Print the report of an experiment, write its files and store them with the ablation in MLflow.

    Args:
        uri: where MLflow is.
        experiment: the experiment's name.
        output: directory of the files; created if it is not there.
        console: where to print.
        allow_differences: show what else than the factor differs in the header, instead of refusing.
        seeds: only these, where an ablation ended with some whole; None: all.

    Raises:
        TrackingError: if MLflow cannot be used or has no such runs.
        ComparisonError: if the runs cannot be compared.
        ResourceError: if the files cannot be written.
    """
    data = load_experiment(uri, experiment)
    if seeds is not None:
        data = replace(data, runs=tuple(run for run in data.runs if run.seed in seeds))
    settings = Settings(allow_differences=allow_differences)
    study, artifacts = study_of(data, output=output, runs_dir=output.parent.parent, console=console, settings=settings)
    render_report(study, console)
    paths = write_report(study, output)
    print_paths(paths, console)
    store_report(study, paths, artifacts, console)


def study_of(
    data: ExperimentData, *, output: Path, runs_dir: Path, console: Console, settings: Settings | None = None
) -> tuple[Study, Artifacts]:
    """Make the study of runs, with a progress bar where people look on.

    Args:
        data: the runs.
        output: directory of the report, which keeps what took long.
        runs_dir: where experiments lie on this machine.
        console: where the bar is drawn.
        settings: how.

    Raises:
        CoordExpError: as :func:`coordexp.report.study.make.make_study`.
        ResourceError: if ``output`` cannot be written.
    """
    with _writing(output):
        artifacts = Artifacts(data, cache=output / ".artifacts", runs_dir=runs_dir)
        with _progress(console) as show:
            study = make_study(data, artifacts, StatisticsCache(output / STATISTICS), settings, on_progress=show)
    return study, artifacts


def write_report(study: Study, output: Path) -> list[Path]:
    """Write the files of a report and return their paths, the page first.

    Raises:
        ResourceError: if they cannot be written.
    """
    texts = {
        "report.html": render_page,
        "report.md": to_markdown,
        "report.json": to_json,
        "report.csv": to_csv,
        "report.tex": to_latex,
    }
    with _writing(output):
        for name, make in texts.items():
            write_text(output / name, make(study))
        return [*(output / name for name in texts), *write_plots(study, output)]


def store_report(study: Study, paths: list[Path], artifacts: Artifacts, console: Console) -> None:
    """Store a report in MLflow; where that fails the files are there all the same."""
    try:
        if record_report(study, paths, artifacts):
            console.print("Stored with the ablation's run in MLflow, under report/.", highlight=False)
    except TrackingError as error:
        console.print(f"the report is not in MLflow: {error}", markup=False, highlight=False, soft_wrap=True)


def print_paths(paths: list[Path], console: Console) -> None:
    """Print where the files are."""
    console.print("\nWritten:", highlight=False)
    for path in paths:
        console.print(f"  {path}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _writing(output: Path) -> Generator[None]:
    try:
        output.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ResourceError(
            f"the report cannot be written to {output} ({error.strerror}): expected a directory that can be written"
        ) from error


@contextmanager
def _progress(console: Console) -> Generator[OnProgress]:
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    )  # fmt: skip
    tasks: dict[str, TaskID] = {}
    with bar:

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield show
