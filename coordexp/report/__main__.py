"""``python -m coordexp.report [EXPERIMENT]``: tables and plots of what MLflow holds."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from coordexp.errors import CoordExpError
from coordexp.report.load import ExperimentData, load_experiment
from coordexp.report.render import render_report, to_csv, to_json, to_markdown
from coordexp.report.write import announce, write_report

_NARROW_PIPE = 120


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0, or 2 after a sentence about what the user can mend.
    """
    arguments = _parser().parse_args(argv)
    # The report is for people and files; a pipe has no width of its own.
    console = Console(width=None if sys.stdout.isatty() else _NARROW_PIPE)
    errors = Console(stderr=True)
    try:
        data = load_experiment(_uri(arguments), arguments.experiment)
        _show(data, arguments.format, console)
        output = arguments.output or arguments.runs_dir / data.name / "report"
        announce(write_report(data, output), console if arguments.format == "terminal" else errors)
    except CoordExpError as error:
        if arguments.debug:
            raise
        errors.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        return 2
    return 0


def _show(data: ExperimentData, form: str, console: Console) -> None:
    if form == "terminal":
        render_report(data, console)
        return
    text = {"md": to_markdown, "csv": to_csv, "json": to_json}[form](data)
    console.print(text, end="", markup=False, highlight=False, soft_wrap=True, emoji=False)


def _uri(arguments: argparse.Namespace) -> str:
    database = arguments.runs_dir.absolute() / "mlflow.db"
    return arguments.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{database}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m coordexp.report", description=__doc__)
    parser.add_argument("experiment", nargs="?", help="name; default: the one in which a run was started last")
    parser.add_argument("--tracking-uri", help="default: MLFLOW_TRACKING_URI, else the database in --runs-dir")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), help="default: runs")
    parser.add_argument("--output", type=Path, help="directory of the files; default: RUNS_DIR/EXPERIMENT/report")
    parser.add_argument("--format", choices=("terminal", "md", "csv", "json"), default="terminal")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


if __name__ == "__main__":
    sys.exit(main())
