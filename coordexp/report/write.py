"""The report as an ablation ends with it: printed, and written as files."""

from pathlib import Path

from rich.console import Console

from coordexp.errors import ResourceError
from coordexp.files import write_text
from coordexp.report.load import ExperimentData, load_experiment
from coordexp.report.plots import write_plots
from coordexp.report.render import render_report, to_markdown


def report_experiment(uri: str, experiment: str, *, output: Path, console: Console) -> None:
    """Print the report of an experiment and write ``report.md``, ``losses.png`` and ``ap.png``.

    Args:
        uri: where MLflow is.
        experiment: the experiment's name.
        output: directory of the files; created if it is not there.
        console: where to print.

    Raises:
        TrackingError: if MLflow cannot be used or has no such runs.
        ResourceError: if the files cannot be written.
    """
    data = load_experiment(uri, experiment)
    render_report(data, console)
    announce(write_report(data, output), console)


def write_report(data: ExperimentData, output: Path) -> list[Path]:
    """Write the files of a report and return their paths.

    Raises:
        ResourceError: if they cannot be written.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        write_text(output / "report.md", to_markdown(data))
        return [output / "report.md", *write_plots(data, output)]
    except OSError as error:
        raise ResourceError(
            f"the report cannot be written to {output} ({error.strerror}): expected a directory that can be written"
        ) from error


def announce(paths: list[Path], console: Console) -> None:
    """Say where the files are."""
    console.print("\nWritten:", highlight=False)
    for path in paths:
        console.print(f"  {path}", markup=False, highlight=False, soft_wrap=True)
