"""What ``compare`` and ``report`` share: options, reading files of detections in the right frame, printing a study."""

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
    from coordexp.detection.ground_truth import GroundTruth
    from coordexp.report.study.study import Study


def add_comparison(parser: argparse.ArgumentParser) -> None:
    """Add the options of a comparison: its form, resamples, pictures, units, slices, frames and aliases."""
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
    """Return the rule of ``--unit-by``; None without the option.

    Raises:
        ConfigError: if the text is neither a field nor a pattern.
    """
    from coordexp.data.units import UnitRule

    return None if options.unit_by is None else UnitRule.parse(options.unit_by)


def sample_options(options: argparse.Namespace) -> list[str]:
    """Return ``--unit-by`` and ``--slices`` as they were typed, for a command that a person copies."""
    words: list[str] = []
    if options.unit_by is not None:
        words += ["--unit-by", options.unit_by]
    for text in options.slices:
        words += ["--slices", text]
    return words


def slice_names(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the fields and files of all ``--slices``; fields may be joined by commas, a file stands alone."""
    names: list[str] = []
    for text in options.slices:
        is_file = Path(text).suffix.lower() in (".csv", ".tsv")
        if is_file:
            names.append(text)
        else:
            names += [field.strip() for field in text.split(",") if field.strip()]
    return tuple(names)


def named_frames(texts: Sequence[str], names: Sequence[str]) -> "dict[str, Frame]":
    """Return the frame that ``--frame`` gives to each name; names without one are missing."""
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
    """Read the files of each name, and check that their boxes stand in the frame that they are read in.

    Only names without a frame of their own are checked, each by its first file. If the boxes fit the ground truth
    better in another frame, a warning is printed.

    Args:
        paths: files of each name.
        annotations: the ground truth, a COCO file.
        frames: how the boxes of a name are written, as far as the user has said so.
        command: what was typed, without ``--frame``: a message repeats it with the right frames.
        errors: the console of warnings.
        aliases: the category that each further name means.

    Returns:
        What each file holds, by name, in the order of ``paths``.

    Raises:
        ComparisonError: if the boxes of a name fit far better in another frame.
        DataError: if a file cannot be read, or names an image or a category that the ground truth lacks.
    """
    from coordexp.detection.detections import detections_of
    from coordexp.detection.forms.results import read_results
    from coordexp.detection.ground_truth import read_ground_truth

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
    _check_frames(files, truth, frames, command, errors)

    # The study converts the files again, one by one. A file that it would refuse is refused here, before it spends
    # hours on measuring the others.
    for name, several in files.items():
        for results in several:
            detections_of(results, truth, frames.get(name))
    return files


def _check_frames(
    files: "Mapping[str, Sequence[Results]]",
    truth: "GroundTruth",
    frames: "Mapping[str, Frame]",
    command: Sequence[str],
    errors: "Console",
) -> None:
    """Warn of boxes that fit the ground truth better in another frame; refuse those that fit far better there.

    The arguments are those of :func:`read_files`.
    """
    from coordexp.doctor.boxes import diagnose

    diagnoses = {name: diagnose(several[0], truth) for name, several in files.items() if name not in frames}
    better_frames: dict[str, Frame] = {}
    for name, diagnosis in diagnoses.items():
        if diagnosis is not None and diagnosis.outcome in ("better", "far better"):
            better_frames[name] = diagnosis.best.frame
    right_command = list(command)
    for name, frame in {**frames, **better_frames}.items():
        right_command += ["--frame", f"{name}={frame}"]

    for name, diagnosis in diagnoses.items():
        if diagnosis is None or diagnosis.outcome == "good":
            continue
        sentence = f"{files[name][0].path}: {diagnosis.sentence}"
        if name in better_frames:
            as_read = shlex.quote(f"{name}={diagnosis.plain.frame}")
            sentence += f"; keep this reading with --frame {as_read}, or take the other with\n"
            sentence += shlex.join(right_command)
        if diagnosis.outcome == "far better":
            raise ComparisonError(sentence)
        show(errors, f"warning: {sentence}")


def print_comparison(
    study: "Study",
    paths: list[Path],
    options: argparse.Namespace,
    console: "Console",
    errors: "Console",
    *,
    numbers: str = "",
) -> None:
    """Print a study as ``--format`` asks.

    Args:
        study: what is printed.
        paths: the files that were written, which are named at the end.
        options: of the verb; ``format`` and ``all`` are read.
        console: where the study is printed.
        errors: where cautions and paths are printed if the study itself is data, as JSON or CSV.
        numbers: JSON to print in place of the report's own; "": the report's own.
    """
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
