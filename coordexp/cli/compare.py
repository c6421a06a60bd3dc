"""Compare detectors of any kind by their COCO results files, on the same images.

    coordexp compare --annotations instances_val.json A=a.json B=b.json
    coordexp compare --annotations instances_val.json A=a0.json,a1.json B=b0.json,b1.json --images val2017

Several files under one name are seeds of one method. The page, tables and plots are those of an experiment's report:
AP with intervals, every pair on the same images with its interval and p-values, and where the differences are.
"""

import argparse
import sys
from pathlib import Path

from coordexp.cli.arguments import named_files, positive, seed
from coordexp.cli.console import error_console, output_console, show
from coordexp.cli.frames import add_frame, check_frames, named_frames
from coordexp.errors import ComparisonError

HELP = "compare detectors of any kind by their COCO results files"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("files", nargs="+", metavar="NAME=FILE[,FILE...]", help="a detector's results, a file a seed")
    parser.add_argument("--annotations", type=Path, required=True, help="ground truth in COCO's format")
    add_frame(parser)
    parser.add_argument("--images", type=Path, help="folder of the images, to draw those that differ most")
    parser.add_argument("--output", type=Path, default=Path("comparison"), help="folder of the files (%(default)s)")
    parser.add_argument("--format", choices=("terminal", "md", "csv", "json", "latex"), default="terminal")
    parser.add_argument("--all", action="store_true", help="print every table, not one screen")
    parser.add_argument("--resamples", type=positive, help="of the bootstrap; default: 2000, or 50 a pair if more")
    parser.add_argument("--seed", type=seed, default=0, help="of the resamples (%(default)s)")
    parser.add_argument("--pictures", type=positive, default=24, help="in the gallery (%(default)s)")


def run(options: argparse.Namespace) -> None:
    """Compare, print, and write the page."""
    from coordexp.detection.ground_truth import read_ground_truth
    from coordexp.detection.result_files import read_results
    from coordexp.report.study.data import ExperimentData
    from coordexp.report.study.foreign import foreign_rows
    from coordexp.report.study.study import Settings
    from coordexp.report.text.notes import remarks
    from coordexp.report.text.records import to_numbers
    from coordexp.report.text.render import print_report
    from coordexp.report.write import SAME_WITH_ALL, print_paths, print_study, study_of, write_report, writing

    files, output = named_files(options.files), options.output
    frames = named_frames(options.frame, list(files))
    console, errors = output_console(), error_console()
    truth = read_ground_truth(options.annotations)
    results = {name: [read_results(path, truth) for path in paths] for name, paths in files.items()}
    command = ["coordexp", "compare", "--annotations", str(options.annotations), *options.files]
    command += [] if options.images is None else ["--images", str(options.images)]
    for warning in check_frames(results, truth, frames, command):
        show(errors, warning)
    with writing(output):
        scratch = output / ".artifacts"
        rows = foreign_rows(results, options.annotations, frames=frames, images=options.images, scratch=scratch)
    del results
    *first, last = files
    name = f"Comparison of {', '.join(first)} and {last}" if first else f"Comparison of {last}"
    data = ExperimentData(name=name, uri="", runs=tuple(rows))
    settings = Settings(resamples=options.resamples, seed=options.seed, num_pictures=options.pictures)
    study, _ = study_of(data, output=output, runs_dir=output, console=errors, settings=settings)
    if study.comparison is None:
        raise ComparisonError(" ".join(study.missing))
    paths = write_report(study, output)
    if options.format == "terminal":
        print_study(study, paths, console, everything=options.all, again=SAME_WITH_ALL)
        return
    for remark in (*study.cautions, *remarks(data)):
        show(errors, f"note: {remark}")
    if options.format == "json":
        sys.stdout.write(to_numbers(study.comparison, data))
    else:
        print_report(study, options.format, console)
    print_paths(paths, errors)
