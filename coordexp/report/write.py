"""The report as an ablation ends with it: a study is made, printed, written as files, and stored in MLflow."""

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from coordexp.errors import ResourceError
from coordexp.evaluate.generated_by import generator_of
from coordexp.files import write_text
from coordexp.metrics import BoxKind
from coordexp.report.charts.files import write_plots
from coordexp.report.make_study import make_study
from coordexp.report.page.page import render_page
from coordexp.report.records.artifacts import FINAL_CONSTRAINED, Artifacts
from coordexp.report.records.data import ExperimentData, RunRecord, read_by
from coordexp.report.records.load import load_experiment
from coordexp.report.store import store_report
from coordexp.report.study.inputs import Settings
from coordexp.report.study.study import Study
from coordexp.report.text.records import to_csv, to_json
from coordexp.report.text.render import render_report, to_latex, to_markdown
from coordexp.report.text.screen import screen_lines
from coordexp.shipped import python_command
from coordexp.stages import report_stage


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

    Args:
        uri: MLflow's address.
        experiment: its name.
        output: ``RUNS_DIR/EXPERIMENT/report``.
        console: for the screen.
        allow_differences: compare runs that differ in more than the declared factor.
        seeds: those shown, if an ablation ended with some seeds whole; None shows all.
        readings: the boxes by which groups are read, if not as their runs say.
        everything: print every table instead of one screen.
    """
    runs_dir = output.parent.parent
    data = read_by(load_experiment(uri, experiment, runs_dir=runs_dir), readings or {})
    if seeds is not None:
        data = replace(data, runs=tuple(run for run in data.runs if run.seed in seeds))
    settings = Settings(allow_differences=allow_differences)
    study, artifacts = study_of(data, output=output, runs_dir=runs_dir, settings=settings)
    paths = write_report(study, output)
    failure = store_report(study, paths, artifacts)
    is_default = runs_dir.absolute() == Path("runs").absolute()
    runs_dir_option = [] if is_default else ["--runs-dir", str(runs_dir)]
    again = python_command("-m", "coordexp", "report", experiment, *runs_dir_option, "--all")
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
        record_path = None if run.foreign is not None else artifacts.file(run, FINAL_CONSTRAINED.generated_by)
        runs.append(run if record_path is None else replace(run, generator=generator_of(record_path)))
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
        return
    for line in screen_lines(study, page=paths[0], again=again, width=console.width):
        style = ""
        if line.startswith(("! ", "  ")):
            style = "yellow"
        elif line.startswith(study.data.title):
            style = "bold"
        console.print(Text(line, style), soft_wrap=True)


def print_paths(paths: list[Path], console: Console) -> None:
    """Print where files were written."""
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
