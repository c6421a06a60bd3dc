"""Report on an experiment with tables, plots and an HTML page, or show it live while it runs."""

import argparse
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import quote

from coordexp.cli.arguments import by_name, named_files, number, read_aliases
from coordexp.cli.console import error_console, output_console, show, stage_bars
from coordexp.cli.detections import (
    add_comparison,
    named_frames,
    print_comparison,
    read_files,
    sample_options,
    slice_names,
    unit_rule,
)
from coordexp.errors import ConfigError, is_name
from coordexp.errors import show as show_value

if TYPE_CHECKING:
    from rich.console import Console

    from coordexp.metrics import BoxKind
    from coordexp.report.records.data import ExperimentData

_SUFFIXES = {"md": ".md", "csv": ".csv", "json": ".json", "latex": ".tex"}
HELP = "tables, plots and a page of an experiment, or a live view of it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``coordexp report``."""
    several = (
        "one name, or several on the same data; default: the one in which a run was started last. With --over, a "
        "folder that --over --publish wrote stands for its experiments"
    )
    parser.add_argument("experiment", nargs="*", help=several)
    parser.add_argument("--runs", nargs="+", metavar="ID", help="MLflow run ids; EXPERIMENT is the title")
    parser.add_argument("--tracking-uri", help="default: MLFLOW_TRACKING_URI, else the database in --runs-dir")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), help="default: runs")
    parser.add_argument("--output", type=Path, help="directory of the files; default: RUNS_DIR/EXPERIMENT/report")
    read = "read a group's headline otherwise, repeatable: A=expected, C=argmax; without GROUP all of them"
    parser.add_argument("--reading", action="append", default=[], metavar="[GROUP=]BOXES", help=read)
    row = "add another detector's COCO results on the same images as a row, repeatable; several files are seeds"
    parser.add_argument("--with", dest="files", action="append", default=[], metavar="NAME=FILE[,FILE...]", help=row)
    add_comparison(parser)
    parser.add_argument("--allow-differences", action="store_true", help="compare runs that differ outside the factor")
    parser.add_argument("--store", action="store_true", help="store the report with the ablation's run in MLflow")
    over = "compare the leads of groups over a key of the configuration in which alone the experiments differ"
    parser.add_argument("--over", metavar="KEY", help=over)
    parser.add_argument("--publish", type=Path, metavar="DIR", help="write what is worth committing")
    without = "publish neither pictures nor annotations; --check then takes --annotations"
    parser.add_argument("--without-data", action="store_true", help=without)
    parser.add_argument("--check", type=Path, metavar="DIR", help="compute the numbers of published results again")
    truth = "the annotation file of results that were published without data"
    parser.add_argument("--annotations", type=Path, metavar="FILE", help=truth)
    parser.add_argument("--watch", action="store_true", help="show a running experiment live, until it ends or Ctrl-C")
    between = "between looks; 2, or 30 in a pipe"
    parser.add_argument("--interval", type=number(float, 0.05, 86_400), metavar="SECONDS", help=between)


def run(options: argparse.Namespace) -> None:
    """Report on an experiment, watch it, compare experiments over a key, or check published results.

    Raises:
        ConfigError: if options contradict each other, or one has no effect without another.
    """
    if options.runs and len(options.experiment) != 1:
        raise ConfigError("--runs takes one title before it: report TITLE --runs ID ID")
    if options.runs and not is_name(options.experiment[0]):
        raise ConfigError(f"the title {show_value(options.experiment[0])} is no title: expected printable text")
    if options.watch and (options.runs or options.files or options.tracking_uri or len(options.experiment) > 1):
        raise ConfigError("--watch takes at most one experiment, without --runs, --with or --tracking-uri")
    if options.without_data and options.publish is None:
        raise ConfigError("--without-data says how --publish DIR writes results, and there is no --publish")
    if options.annotations is not None and options.check is None:
        raise ConfigError("--annotations FILE goes with --check DIR; a report finds the annotations of its runs itself")
    if options.check is not None:
        _check(options.check, options.annotations)
    elif options.watch:
        from functools import partial

        from coordexp.report.watch import read_experiment, watch, watched

        directory = watched(options.experiment[0] if options.experiment else None, options.runs_dir)
        watch(partial(read_experiment, directory), output_console(), interval=options.interval)
    elif options.over is not None:
        _report_over(options, output_console(), error_console())
    else:
        _report(options, output_console(), error_console())


def _check(directory: Path, annotations: Path | None) -> None:
    """Compute the numbers of published results again; ``annotations`` replaces the file they were published without."""
    from coordexp.report.published.check import check
    from coordexp.report.published.folder import is_over_key
    from coordexp.report.published.over import check_over
    from coordexp.stages import report_stage

    with stage_bars():
        if is_over_key(directory):
            count = check_over(directory, annotations, report_stage)
        else:
            count = check(directory, annotations=annotations)
    show(output_console(), f"{directory}: {count} numbers, all of which follow from its detections")


def _report_over(options: argparse.Namespace, console: "Console", errors: "Console") -> None:
    """Compare the leads of groups over a key of the configuration; write and print the result."""
    from coordexp.report.over.compare import compare_over
    from coordexp.report.over.write import print_over, write_over
    from coordexp.report.published.folder import IMAGES
    from coordexp.report.published.over import publish_over
    from coordexp.report.published.runs import check_annotations
    from coordexp.report.records.data import read_by
    from coordexp.report.study.inputs import Settings
    from coordexp.report.write import artifacts_of, print_paths, writing
    from coordexp.stages import report_stage

    if options.files or options.runs or options.store or options.slices or options.watch:
        raise ConfigError("--over compares whole experiments, without --with, --runs, --store, --slices or --watch")
    with TemporaryDirectory(prefix="coordexp-") as scratch:
        data, folders = _load_over(options, Path(scratch))
        data = read_by(data, _readings(options.reading, list(data.groups)))
        output = _output(options, data)
        settings = Settings(
            resamples=options.resamples,
            allow_differences=options.allow_differences,
            unit_by=unit_rule(options),
            image_facts=next((folder / IMAGES for folder in folders if (folder / IMAGES).is_file()), None),
        )
        artifacts = artifacts_of(data, output=output, runs_dir=options.runs_dir)
        with stage_bars(), writing(output):
            study = compare_over(options.over, data, artifacts, settings, on_progress=report_stage)
            for folder in folders:
                check_annotations(folder, study.annotations)
            paths = write_over(study, output)
            if options.publish is not None:
                publish_over(study, artifacts, options.publish, without_data=options.without_data)

    if options.format == "terminal":
        print_over(study, console)
        print_paths(paths, console)
    else:
        text = paths[0].with_suffix(_SUFFIXES[options.format]).read_text(encoding="utf-8")
        console.print(text, end="", markup=False, highlight=False, soft_wrap=True, emoji=False)
        print_paths(paths, errors)
    if options.publish is not None:
        show(errors, f"Published in {options.publish}")


def _load_over(options: argparse.Namespace, scratch: Path) -> "tuple[ExperimentData, list[Path]]":
    """Read the experiments to compare over a key, and return them with the published folders among them.

    Args:
        options: of the verb; an experiment is a name, or a folder that ``--over --publish`` wrote.
        scratch: an empty folder for the files of published runs.
    """
    from coordexp.report.published.runs import is_published, read_published, with_published
    from coordexp.report.records.load import as_one, load_experiment

    folders = [Path(name) for name in dict.fromkeys(options.experiment) if is_published(Path(name))]
    if not folders:
        return _load(options), []
    uri = _tracking_uri(options)
    published: list[ExperimentData] = []
    for index, folder in enumerate(folders):
        published = with_published(read_published(folder, scratch / str(index), uri=uri), published)
    names = [name for name in dict.fromkeys(options.experiment) if Path(name) not in folders]
    is_named = options.tracking_uri is not None
    experiments = [load_experiment(uri, name, runs_dir=options.runs_dir, is_named=is_named) for name in names]
    return as_one(with_published(experiments, published)), folders


def _output(options: argparse.Namespace, data: "ExperimentData") -> Path:
    """Return the folder of the report: ``--output``, or that in the folder of the experiment."""
    from coordexp.runs.folder import ExperimentFolder

    if options.output is not None:
        return options.output
    return ExperimentFolder(options.runs_dir / folder_name(data.name)).report


def _report(options: argparse.Namespace, console: "Console", errors: "Console") -> None:
    """Compare the groups of an experiment; write, print, and perhaps publish and store the report."""
    from coordexp.report.records.data import read_by
    from coordexp.report.store import store_report
    from coordexp.report.study.inputs import Settings
    from coordexp.report.write import study_of, write_report

    settings = Settings(
        resamples=options.resamples,
        num_pictures=options.pictures,
        allow_differences=options.allow_differences,
        unit_by=unit_rule(options),
        slices=slice_names(options),
    )
    with stage_bars():
        data = _load(options)
        data = read_by(data, _readings(options.reading, list(data.groups)))
        output = _output(options, data)
        data = _with_other_detectors(data, options, cache=output / ".artifacts", errors=errors)
        study, artifacts = study_of(data, output=output, runs_dir=options.runs_dir, settings=settings)
        paths = write_report(study, output)
        if options.publish is not None:
            from coordexp.report.published.publish import publish

            publish(study, artifacts, options.publish, without_data=options.without_data)
        failure = store_report(study, paths, artifacts) if options.store else ""
    print_comparison(study, paths, options, console, errors)
    if options.publish is not None:
        show(errors, f"Published in {options.publish}")
    if failure:
        show(errors, failure)


def _with_other_detectors(
    data: "ExperimentData", options: argparse.Namespace, *, cache: Path, errors: "Console"
) -> "ExperimentData":
    """Return an experiment with a row for each detector of ``--with``.

    Args:
        data: the experiment.
        options: of the verb.
        cache: folder for files that MLflow sends.
        errors: console of warnings.

    Raises:
        ConfigError: if the annotations that the experiment was evaluated on are not on this machine.
    """
    from coordexp.report.records.artifacts import Artifacts
    from coordexp.report.records.foreign import with_files

    files_by_name = named_files(options.files)
    if options.aliases is not None and not files_by_name:
        raise ConfigError("--aliases names categories of --with NAME=FILE, and there is none")
    frames = named_frames(options.frame, list(files_by_name))
    if not files_by_name:
        return data

    artifacts = Artifacts(data, cache=cache, runs_dir=options.runs_dir)
    annotations: Path | None = None
    for run in data.runs:
        annotations = annotations or artifacts.annotations(run)
    if annotations is None:
        raise ConfigError(f"--with: the annotations that {data.name} was evaluated on are not on this machine")

    command = ["coordexp", "report", *options.experiment]
    for text in options.files:
        command += ["--with", text]
    command += sample_options(options)
    if options.aliases is not None:
        command += ["--aliases", str(options.aliases)]
    aliases = read_aliases(options.aliases)
    results = read_files(files_by_name, annotations, frames, command, errors, aliases=aliases)
    return with_files(data, results, annotations, frames=frames, scratch=cache)


def _load(options: argparse.Namespace) -> "ExperimentData":
    """Read the runs that the options name from the tracking server, or from the database in ``--runs-dir``."""
    from coordexp.report.records.load import load_experiment, load_experiments, load_runs

    names: list[str] = options.experiment
    runs_dir: Path = options.runs_dir
    is_named = options.tracking_uri is not None
    uri = _tracking_uri(options)
    if options.runs:
        return load_runs(uri, names[0], options.runs)
    if len(names) > 1:
        return load_experiments(uri, names, runs_dir=runs_dir, is_named=is_named)
    return load_experiment(uri, *names, runs_dir=runs_dir, is_named=is_named)


def _tracking_uri(options: argparse.Namespace) -> str:
    """Return the address of MLflow: the one given, that of the environment, or the database beside the runs."""
    from coordexp.config.load import database_uri

    runs_dir: Path = options.runs_dir
    return options.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or database_uri(runs_dir.absolute())


def _readings(texts: list[str], groups: list[str]) -> "dict[str, BoxKind]":
    """Return which reading of the boxes ``--reading`` asks for, by group; of two for one group the later one holds."""
    from coordexp.metrics import BOX_KINDS

    kinds: dict[str, BoxKind] = {kind: kind for kind in BOX_KINDS}

    def kind(boxes: str) -> "BoxKind":
        if boxes not in kinds:
            raise ConfigError(f"--reading: got {boxes!r}, expected {' or '.join(kinds)}, or GROUP=BOXES")
        return kinds[boxes]

    return by_name("--reading", texts, groups, kind)


def folder_name(name: str) -> str:
    """Return a folder's name for an experiment of any name, also of another program's experiment on the server."""
    folder = quote(name, safe=" +,=@()[]").replace(" ", "_")
    is_dots_alone = not folder.strip(".")
    if is_dots_alone:  # ".." would be the folder above
        return folder.replace(".", "%2E")
    return folder
