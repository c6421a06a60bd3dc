"""Write an experiment on a folder of images and annotations in COCO's format, whose files are checked first.

coordexp new dataset FOLDER
"""

import argparse
import re
from pathlib import Path

from coordexp.cli.arguments import add_debug
from coordexp.cli.console import error_console, output_console, show
from coordexp.shipped import command

HELP = "an experiment on data of one's own"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    dataset = parser.add_subparsers(required=True, metavar="WHAT").add_parser("dataset", help=HELP)
    dataset.add_argument("folder", type=Path, metavar="FOLDER", help="of a data set in COCO's format")
    for split, what in (("train", "training"), ("val", "validation")):
        dataset.add_argument(f"--{split}-annotations", type=Path, metavar="FILE", help=f"of {what}, where not found")
        dataset.add_argument(f"--{split}-images", type=Path, metavar="FOLDER", help="its pictures, where not found")
    dataset.add_argument("--name", help="of the experiment (default: that of the folder)")
    dataset.add_argument("--output", type=Path, help="the new file (default: NAME.yaml)")
    dataset.add_argument(
        "--config",
        type=Path,
        help="the experiment whose model and training it takes (default: coco_qwen3vl_4b where there is a GPU or "
        "model.path=..., else coco_tiny, whose embedded model is a check and no more)",
    )
    dataset.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="what the file is to hold, such as model.path=DIR"
    )
    add_debug(dataset, default=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> None:
    """Write the experiment and say what comes next."""
    with error_console().status("reading annotations, opening images, measuring"):
        from coordexp.doctor.machine import Machine
        from coordexp.scaffold.coco_folder import find_split
        from coordexp.scaffold.dataset import NewDataset, new_dataset

        folder: Path = options.folder
        machine = Machine.here()
        # Another model's images are not those of the embedded one, of 96 x 96 pixels.
        has_model = any(text.startswith("model.path=") and text != "model.path=embedded" for text in options.overrides)
        name = options.name or re.sub(r"[^A-Za-z0-9_.-]+", "_", folder.absolute().name).strip("_.-") or "data"
        wanted = NewDataset(
            name=name,
            files={
                "train": find_split(
                    folder, "train", annotations=options.train_annotations, images=options.train_images
                ),
                "val": find_split(folder, "val", annotations=options.val_annotations, images=options.val_images),
            },
            config=options.config or Path("coco_qwen3vl_4b" if machine.gpu_names or has_model else "coco_tiny"),
            overrides=options.overrides,
            output=options.output or Path(f"{name}.yaml"),
        )
        findings, about = new_dataset(wanted, machine)
    console = output_console()
    for finding in findings:
        mark = "" if finding.verdict == "ok" else f"{finding.verdict}: "
        show(console, f"{finding.check}: {mark}{finding.sentence}")
    show(console, f"written: {wanted.output}")
    for line in about:
        show(console, f"  {line}")
    show(console, f"next: {command('doctor', '--config', wanted.output)}")
    show(console, f"then: {command('ablation', '--config', wanted.output)}")
