"""Compare detectors of any kind by their COCO results files, on the same images.

    coordexp compare --annotations instances_val.json A=a.json B=b.json
    coordexp compare --annotations instances_val.json A=a0.json,a1.json B=b0.json,b1.json --images val2017

Several files under one name are seeds of one method. A folder of YOLO's or VOC's text files counts as one file. The
page, tables and plots are those of an experiment's report: AP with intervals; for every pair the difference on the same
images, with its interval and p-values; and where the differences are.
"""

import argparse
from pathlib import Path

from coordexp.cli.arguments import named_files, read_aliases, seed
from coordexp.cli.console import error_console, output_console, stage_bars
from coordexp.cli.detections import (
    add_comparison,
    named_frames,
    print_comparison,
    read_files,
    sample_options,
    slice_names,
    unit_rule,
)
from coordexp.errors import ComparisonError

HELP = "compare detectors of any kind by their COCO results files"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``coordexp compare``."""
    parser.add_argument(
        "files", nargs="+", metavar="NAME=FILE[,FILE...]", help="a detector's results, a file or folder a seed"
    )
    parser.add_argument("--annotations", type=Path, required=True, help="ground truth in COCO's format")
    add_comparison(parser)
    parser.add_argument("--images", type=Path, help="folder of the images, to draw those that differ most")
    parser.add_argument("--output", type=Path, default=Path("comparison"), help="folder of the files (%(default)s)")
    parser.add_argument("--seed", type=seed, default=0, help="of the resamples (%(default)s)")


def run(options: argparse.Namespace) -> None:
    """Compare the detectors, write the report's files, and print it.

    Raises:
        ComparisonError: if the files cannot be compared.
    """
    from coordexp.report.records.data import ExperimentData
    from coordexp.report.records.foreign import foreign_rows
    from coordexp.report.study.inputs import Settings
    from coordexp.report.text.records import part_records, to_numbers
    from coordexp.report.write import study_of, write_report, writing

    files = named_files(options.files)
    frames = named_frames(options.frame, list(files))
    aliases = read_aliases(options.aliases)
    output: Path = options.output
    console = output_console()
    errors = error_console()
    settings = Settings(
        resamples=options.resamples,
        seed=options.seed,
        num_pictures=options.pictures,
        unit_by=unit_rule(options),
        slices=slice_names(options),
    )
    with stage_bars():
        results = read_files(files, options.annotations, frames, _command(options), errors, aliases=aliases)
        with writing(output):
            scratch = output / ".artifacts"
            rows = foreign_rows(results, options.annotations, frames=frames, images=options.images, scratch=scratch)
        del results  # it holds every box of every file, and nothing below needs it
        data = ExperimentData(name=_title(list(files)), uri="", runs=tuple(rows))
        study, _ = study_of(data, output=output, runs_dir=output, settings=settings)
        if study.comparison is None:
            raise ComparisonError(" ".join(study.missing))
        paths = write_report(study, output)
    numbers = to_numbers(study.comparison, data, part_records(study))
    print_comparison(study, paths, options, console, errors, numbers=numbers)


def _command(options: argparse.Namespace) -> list[str]:
    """Return the words of this command, but for ``--frame`` and what only changes the output."""
    command = ["coordexp", "compare", "--annotations", str(options.annotations), *options.files]
    if options.images is not None:
        command += ["--images", str(options.images)]
    command += sample_options(options)
    if options.aliases is not None:
        command += ["--aliases", str(options.aliases)]
    return command


def _title(names: list[str]) -> str:
    if len(names) == 1:
        return f"Comparison of {names[0]}"
    return f"Comparison of {', '.join(names[:-1])} and {names[-1]}"
