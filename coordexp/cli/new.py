"""Write the configuration file of an experiment on a folder of pictures and labels, which are checked first.

coordexp new dataset FOLDER
"""

import argparse
import re
from pathlib import Path

from coordexp.cli.arguments import add_debug
from coordexp.cli.console import output_console, show, stage_bars
from coordexp.cli.log_lines import add_verbosity
from coordexp.shipped import command

HELP = "an experiment on data of one's own"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``dataset`` and its options to ``coordexp new``."""
    dataset = parser.add_subparsers(required=True, metavar="WHAT").add_parser("dataset", help=HELP)
    add = dataset.add_argument
    add("folder", type=Path, metavar="FOLDER", help="of a data set: COCO, LVIS, JSONL, Pascal VOC or YOLO")
    add("--name", help="of the experiment (default: that of the folder)")
    add("--output", type=Path, help="the new file (default: NAME.yaml)")
    base = "the experiment that it extends (default: coco_qwen3vl_4b where there is a GPU or model.path=..., else "
    add("--config", type=Path, help=base + "coco_tiny, whose embedded model is a check and no more)")
    add("overrides", nargs="*", default=[], metavar="KEY=VALUE", help="what the file is to hold, as model.path=DIR")
    add_debug(dataset, default=argparse.SUPPRESS)
    add_verbosity(dataset, default=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> None:
    """Check the folder, write the configuration file, and print the next commands."""
    with stage_bars():
        from coordexp.doctor.machine import Machine
        from coordexp.scaffold.dataset import new_dataset

        machine = Machine.here()
        folder: Path = options.folder
        letters_of_a_name = re.sub(r"[^A-Za-z0-9_.-]+", "_", folder.absolute().name).strip("_.-")
        name = options.name or letters_of_a_name or "data"
        # A model that was named is not the embedded one, for which coco_tiny shrinks pictures to 96 x 96 pixels.
        has_model = any(text.startswith("model.path=") and text != "model.path=embedded" for text in options.overrides)
        default_config = "coco_qwen3vl_4b" if machine.gpu_names or has_model else "coco_tiny"
        config = options.config or Path(default_config)
        output = options.output or Path(f"{name}.yaml")
        findings, about = new_dataset(
            folder, name=name, config=config, overrides=options.overrides, output=output, machine=machine
        )

    console = output_console()
    for finding in findings:
        mark = "" if finding.verdict == "ok" else f"{finding.verdict}: "
        show(console, f"{finding.check}: {mark}{finding.sentence}")
    show(console, f"written: {output}")
    for line in about:
        show(console, f"  {line}")
    show(console, f"next: {command('doctor', '--config', output)}")
    show(console, f"then: {command('ablation', '--config', output)}")
