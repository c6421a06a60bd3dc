"""What ``compare`` and ``report`` share: files of detections, in which frame they stand, and how a study is printed."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coordexp.cli.arguments import add_aliases, by_name, number, positive
from coordexp.cli.console import show
from coordexp.errors import ComparisonError
from coordexp.stages import report_stage

if TYPE_CHECKING:
    from rich.console import Console

    from coordexp.data.units import UnitRule
    from coordexp.detection.forms.frames import Frame
    from coordexp.detection.forms.results import Results
    from coordexp.report.study.study import Study


def add_comparison(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("terminal", "md", "csv", "json", "latex"), default="terminal")
    parser.add_argument("--all", action="store_true", help="print every table, not one screen")
    parser.add_argument("--resamples", type=positive, default=2000, help="of the bootstrap (%(default)s)")
    parser.add_argument("--pictures", type=number(int, 0, 1000), default=24, help="in the gallery (%(default)s)")
    parser.add_argument(
        "--unit-by",
        metavar="FIELD|PATTERN",
        help="what images that are not independent share, such as clip, or (.+)_ in their file names: drawn as a whole",
    )
    parser.add_argument(
        "--slices",
        action="append",
        default=[],
        metavar="FIELD|FILE.csv",
        help="compare on each value of a field of the images, or of a CSV's columns, repeatable",
    )
    parser.add_argument(
        "--frame",
        action="append",
        default=[],
        metavar="[NAME=]FRAME",
        help="how a detector's files write boxes, such as norm1000:xyxy, repeatable; coordexp doctor boxes finds it",
    )
    add_aliases(parser)


def unit_rule(options: argparse.Namespace) -> "UnitRule | None":
    """Return the rule of ``--unit-by``; None without the option. A ConfigError says why it is no rule."""
    from coordexp.data.units import UnitRule

    return None if options.unit_by is None else UnitRule.parse(options.unit_by)


def sample_options(options: argparse.Namespace) -> list[str]:
    """Return ``--unit-by`` and ``--slices`` as they were typed, for a command to copy."""
    units = [] if options.unit_by is None else ["--unit-by", options.unit_by]
    return [*units, *(word for text in options.slices for word in ("--slices", text))]


def slice_names(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the fields and files of ``--slices``, one by one."""
    names: list[str] = []
    for text in options.slices:
        is_file = Path(text).suffix.lower() in (".csv", ".tsv")
        names += [text] if is_file else [name.strip() for name in text.split(",")]
    return tuple(filter(None, names))


def named_frames(texts: Sequence[str], names: Sequence[str]) -> "dict[str, Frame]":
    from coordexp.detection.forms.frames import Frame

    return by_name("--frame", texts, names, Frame.parse)


def read_files(
    paths: Mapping[str, Sequence[Path]],
    annotations: Path,
    frames: "Mapping[str, Frame]",
    command: Sequence[str],
    errors: "Console",
    *,
    aliases: Mapping[str, str],
) -> "dict[str, list[Results]]":
    """Read the files of each name; refuse those that fit the ground truth far better in another frame, or warn.

    A name whose frame is given is taken at its word. Of several files of one name the first is looked at. ``command``
    is that which was typed, without its frames: it is printed with the right ones. ``aliases``: further names of
    categories.
    """
    from coordexp.detection.detections import detections_of
    from coordexp.detection.forms.results import read_results
    from coordexp.detection.ground_truth import read_ground_truth
    from coordexp.doctor.boxes import diagnose

    truth = read_ground_truth(annotations)
    num_files = sum(len(several) for several in paths.values())
    num_read = 0
    files: dict[str, list[Results]] = {}
    for name, several in paths.items():
        for path in several:
            report_stage("files of detections read", num_read, num_files)
            files.setdefault(name, []).append(read_results(path, truth, aliases=aliases))
            num_read += 1
    report_stage("files of detections read", num_read, num_files)
    found = {name: diagnose(several[0], truth) for name, several in files.items() if name not in frames}
    other = {name: said.best.frame for name, said in found.items() if said is not None and "better" in said.outcome}
    given = [word for name, frame in {**frames, **other}.items() for word in ("--frame", f"{name}={frame}")]
    for name, said in found.items():
        if said is None or said.outcome == "good":
            continue
        text = f"{files[name][0].path}: {said.sentence}"
        if name in other:
            keep = shlex.quote(f"{name}={said.plain.frame}")
            text += f"; keep this reading with --frame {keep}, or take the other with\n{shlex.join([*command, *given])}"
        if said.outcome == "far better":
            raise ComparisonError(text)
        show(errors, f"warning: {text}")
    for name, several in files.items():
        for results in several:  # refused here, before hours of measuring others
            detections_of(results, truth, frames.get(name))
    return files


def print_comparison(
    study: "Study",
    paths: list[Path],
    options: argparse.Namespace,
    console: "Console",
    errors: "Console",
    *,
    numbers: str = "",
) -> None:
    """Print a study as ``--format`` asks, with remarks on stderr; ``numbers`` are JSON in place of the report's own."""
    from coordexp.report.text.notes import remarks
    from coordexp.report.text.render import print_report
    from coordexp.report.write import print_paths, print_study

    if options.format == "terminal":
        print_study(study, paths, console, everything=options.all, again="the same command with --all")
        return
    for remark in (*study.cautions, *remarks(study.data)):
        show(errors, f"note: {remark}")
    if options.format == "json" and numbers:
        show(console, numbers.rstrip("\n"))
    else:
        print_report(study, options.format, console)
    print_paths(paths, errors)
