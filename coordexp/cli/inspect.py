"""Show training samples: tokens coloured by their role, and an image with the boxes that the tokens say."""

import argparse
from pathlib import Path

from coordexp.cli.arguments import add_config, positive
from coordexp.cli.console import output_console, show, stage_bars

HELP = "training samples: tokens by role, boxes drawn on the image"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``coordexp inspect``."""
    add_config(parser)
    parser.add_argument("--num", type=positive, default=3, help="how many samples (%(default)s)")
    parser.add_argument("--split", choices=("train", "val"), default="train")
    parser.add_argument("--output", type=Path, help="folder of the drawn images (default: in the experiment's)")


def run(options: argparse.Namespace) -> None:
    """Print the data's state and some samples, and draw each sample's boxes into a file."""
    from coordexp.cli.views import draw, legend, show_sample
    from coordexp.config import load_config
    from coordexp.runs.experiment import check_experiment
    from coordexp.runs.folder import ExperimentFolder
    from coordexp.train.loop.messages import data_lines, set_lines
    from coordexp.train.preview import previews
    from coordexp.train.setup.data import read_split
    from coordexp.train.setup.door import open_set_beside_runs

    experiment = load_config(options.config, options.overrides)
    # Generated data lie in the experiment's folder. Those of an existing experiment must not be replaced by data of
    # another configuration that has the same name.
    check_experiment(experiment)
    config = experiment.run(experiment.experiment.group, experiment.experiment.seed)
    folder: Path = options.output or ExperimentFolder.of(config).inspected
    folder.mkdir(parents=True, exist_ok=True)

    console = output_console()
    with stage_bars():
        data_set = open_set_beside_runs(config)
    show(console, f"data: the set is {data_set.path}")
    for line in set_lines(config):
        show(console, f"data: {line}")
    for split, summary in data_set.summaries().items():
        show(console, f"data: {split}: {summary}")
    data = read_split(config, options.split)
    for line in data_lines(options.split, data):
        show(console, line)

    console.print(legend())
    for preview in previews(config, num=options.num, split=options.split, data=data):
        drawn = folder / f"{options.split}_{preview.sample.image_id}.png"
        size_px = (preview.sample.width, preview.sample.height)
        objects = [(desc, [box]) for desc, box in preview.objects]
        draw(preview.picture, size_px, objects).save(drawn)
        show_sample(preview, console, drawn=drawn)
