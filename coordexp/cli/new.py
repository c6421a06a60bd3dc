"""Write what an idea begins with, and never over what is there.

coordexp new loss spread                     a loss term with an example in it, and its test
coordexp new group C_spread --term spread    group C and that term, and its test
"""

import argparse
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from coordexp.cli.arguments import DEFAULT_CONFIG, add_debug
from coordexp.cli.console import error_console, output_console, show
from coordexp.errors import ConfigError
from coordexp.shipped import command, python_command

HELP = "a new loss or group, each with its test; an experiment on data of one's own"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments: one command for each kind."""
    kinds = parser.add_subparsers(required=True, metavar="WHAT")
    loss = kinds.add_parser("loss", help="a loss term with an example in it, and its test")
    loss.add_argument("name", metavar="NAME", help="of the term and its file, such as spread")
    loss.set_defaults(write=_loss)
    group = kinds.add_parser("group", help="a group that differs from another one in one thing, and its test")
    group.add_argument("name", metavar="NAME", help="of the group and its file, such as C_spread")
    group.add_argument("--beside", metavar="GROUP", default="C", help="the group it is compared with (%(default)s)")
    group.add_argument(
        "--term", metavar="TERM[=WEIGHT]", help="the loss term it has more (default: an example to change)"
    )
    group.add_argument(
        "--config", type=Path, default=DEFAULT_CONFIG, help="the experiment, beside which lies groups/ (%(default)s)"
    )
    group.set_defaults(write=_group)
    _add_dataset(kinds.add_parser("dataset", help="an experiment on data of one's own, whose files are checked first"))
    for kind in kinds.choices.values():
        add_debug(kind, default=argparse.SUPPRESS)


def _add_dataset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of a data set in COCO's format")
    for split, what in (("train", "training"), ("val", "validation")):
        parser.add_argument(f"--{split}-annotations", type=Path, metavar="FILE", help=f"of {what}, where not found")
        parser.add_argument(f"--{split}-images", type=Path, metavar="FOLDER", help="its pictures, where not found")
    parser.add_argument("--name", help="of the experiment (default: that of the folder)")
    parser.add_argument("--output", type=Path, help="the new file (default: NAME.yaml)")
    parser.add_argument(
        "--config",
        type=Path,
        help="the experiment whose model and training it takes (default: coco_qwen3vl_4b where there is a GPU or "
        "model.path=..., else coco_tiny, whose embedded model is a check and no more)",
    )
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="what the file is to hold, such as model.path=DIR"
    )
    parser.set_defaults(write=_dataset)


def run(options: argparse.Namespace) -> None:
    """Write what was asked for and say what comes next."""
    options.write(options)


def _loss(options: argparse.Namespace) -> None:
    from coordexp.scaffold.loss import new_loss
    from coordexp.scaffold.new_files import Places

    term, test = new_loss(options.name, Places.here())
    _say(
        (term, test),
        ("its test", python_command("-m", "pytest", "-q", _near(test))),
        ("then", command("new", "group", f"C_{options.name}", "--term", options.name)),
    )


def _group(options: argparse.Namespace) -> None:
    from coordexp.scaffold.group import NewGroup, new_group
    from coordexp.scaffold.new_files import Places

    term, weight = _term(options.term)
    group = NewGroup(options.name, options.beside, term, weight, options.config)
    file, test = new_group(group, Places.here())
    config = [] if options.config == DEFAULT_CONFIG else ["--config", options.config]
    groups = f"ablation.groups=[{group.beside}, {group.name}]"
    _say(
        (file, test),
        ("its test", python_command("-m", "pytest", "-q", _near(test))),
        ("then", command("ablation", *config, f"experiment.name={group.name}", groups)),
    )


def _dataset(options: argparse.Namespace) -> None:
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


def _say(files: Iterable[Path], *next_commands: tuple[str, str]) -> None:
    console = output_console()
    for file in files:
        show(console, f"written: {shlex.quote(str(_near(file)))}")
    for what, line in next_commands:
        show(console, f"{what}: {line}")


def _near(path: Path) -> Path:
    """Return a path as a person in this folder types it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _term(text: str | None) -> tuple[str | None, float]:
    if text is None:
        return None, 1.0
    name, equals, weight = text.partition("=")
    try:
        value = float(weight) if equals else 1.0
    except ValueError:
        value = -1.0
    if not name or not 0 < value < float("inf"):
        raise ConfigError(f"--term {text}: expected the name of a loss term, or NAME=WEIGHT with a weight above 0")
    return name, value
