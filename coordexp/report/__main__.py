"""``python -m coordexp.report [EXPERIMENT ...]``: what runs say, as tables, plots and one HTML page, or live."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from rich.console import Console

from coordexp.config.load import database_uri
from coordexp.errors import CoordExpError
from coordexp.report.study.analysis import Settings
from coordexp.report.study.data import ExperimentData
from coordexp.report.study.load import load_experiment, load_experiments, load_runs
from coordexp.report.study.study import Study
from coordexp.report.text.export import to_csv, to_json, to_latex
from coordexp.report.text.render import render_report, to_markdown
from coordexp.report.watch.watch import ChosenSource, watch
from coordexp.report.write import announce, store_report, study_of, write_report
from coordexp.runs.folder import ExperimentFolder

_NARROW_PIPE = 120


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0, or 2 after a sentence about what the user can mend.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.runs and len(arguments.experiment) != 1:
        parser.error("--runs takes one title before it: report TITLE --runs ID ID")
    if arguments.watch and (arguments.runs or len(arguments.experiment) > 1):
        parser.error("--watch takes at most one experiment")
    # The report is for people and files; a pipe has no width of its own.
    console = Console(width=None if sys.stdout.isatty() else _NARROW_PIPE)
    errors = Console(stderr=True)
    try:
        if arguments.watch:
            return _watch(arguments, console)
        _report(arguments, console, errors)
    except CoordExpError as error:
        if arguments.debug:
            raise
        errors.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        return 2
    return 0


def _watch(arguments: argparse.Namespace, console: Console) -> int:
    name: str | None = arguments.experiment[0] if arguments.experiment else None
    source = ChosenSource(
        name, runs_dir=arguments.runs_dir, uri=_uri(arguments), is_remote=arguments.tracking_uri is not None
    )
    try:
        return watch(source, console, interval=arguments.interval)
    except BrokenPipeError:  # its reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _report(arguments: argparse.Namespace, console: Console, errors: Console) -> None:
    data = _load(arguments)
    output: Path = arguments.output or ExperimentFolder(arguments.runs_dir / _folder(data.name)).report
    settings = Settings(
        resamples=arguments.resamples,
        num_pictures=arguments.pictures,
        allow_differences=arguments.allow_differences,
    )
    study, artifacts = study_of(data, output=output, runs_dir=arguments.runs_dir, console=errors, settings=settings)
    _show(study, arguments.format, console)
    messages = console if arguments.format == "terminal" else errors
    paths = write_report(study, output)
    announce(paths, messages)
    if arguments.store:
        store_report(study, paths, artifacts, messages)


def _load(arguments: argparse.Namespace) -> ExperimentData:
    uri, names = _uri(arguments), arguments.experiment
    if arguments.runs:
        return load_runs(uri, names[0], arguments.runs)
    return load_experiments(uri, names) if names else load_experiment(uri)


def _show(study: Study, form: str, console: Console) -> None:
    if form == "terminal":
        render_report(study, console)
        return
    text = {"md": to_markdown, "csv": to_csv, "json": to_json, "latex": to_latex}[form](study)
    console.print(text, end="", markup=False, highlight=False, soft_wrap=True, emoji=False)


def _folder(name: str) -> str:
    """Return a title as the name of a folder."""
    folder = quote(name, safe=" +,=@()[]").replace(" ", "_")
    return folder.replace(".", "%2E") if not folder.strip(".") else folder  # not the folder above


def _uri(arguments: argparse.Namespace) -> str:
    runs_dir: Path = arguments.runs_dir
    return arguments.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or database_uri(runs_dir.absolute())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m coordexp.report", description=__doc__)
    parser.add_argument(
        "experiment",
        nargs="*",
        help="one name, or several on the same data; default: the one in which a run was started last",
    )
    parser.add_argument("--runs", nargs="+", metavar="ID", help="MLflow run ids; EXPERIMENT is the title")
    parser.add_argument("--tracking-uri", help="default: MLFLOW_TRACKING_URI, else the database in --runs-dir")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), help="default: runs")
    parser.add_argument("--output", type=Path, help="directory of the files; default: RUNS_DIR/EXPERIMENT/report")
    parser.add_argument("--format", choices=("terminal", "md", "csv", "json", "latex"), default="terminal")
    parser.add_argument(
        "--resamples", type=_positive, help="of the bootstrap; default: 2000, or 50 for each pair of groups if more"
    )
    parser.add_argument("--pictures", type=_positive, default=24, help="in the gallery; default: 24")
    parser.add_argument("--allow-differences", action="store_true", help="compare runs that differ outside the factor")
    parser.add_argument("--store", action="store_true", help="store the report with the ablation's run in MLflow")
    parser.add_argument("--watch", action="store_true", help="show a running experiment live, until it ends or Ctrl-C")
    parser.add_argument(
        "--interval", type=_seconds, metavar="SECONDS", help="between looks; default: 2, or 30 in a pipe"
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.05 and 86400 seconds")
    return value


if __name__ == "__main__":
    sys.exit(main())
