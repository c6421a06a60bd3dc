"""Arguments that several verbs take."""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from coordexp.errors import ConfigError, is_name, show
from coordexp.limits import MAX_COUNT, MAX_SEED

if TYPE_CHECKING:
    from rich.console import Console

    from coordexp.config.schema import ExperimentConfig

_MAX_NAME = 60
_Value = TypeVar("_Value")
_Number = TypeVar("_Number", int, float)


def add_config(parser: argparse.ArgumentParser, *, default: Path = Path("experiments/tiny.yaml")) -> None:
    found = "YAML file, here or among those that come with coordexp (%(default)s)"
    parser.add_argument("--config", type=Path, default=default, help=found)
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="such as training.max_steps=20; VALUE is YAML"
    )


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print what would run, and run nothing")


def add_plain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plain", action="store_true", help="print lines, as into a file, and no board in a terminal")


def add_launch(parser: argparse.ArgumentParser) -> None:
    """Add what an ablation and a sweep have in common beside their configuration."""
    add_dry_run(parser)
    parser.add_argument("--fresh", action="store_true", help="start over; what is there is moved aside")
    add_plain(parser)
    parser.add_argument("--executor", choices=("tune", "inline"), help="tune: on Ray; inline: here, one by one")


def add_debug(parser: argparse.ArgumentParser, *, default: bool | str = False) -> None:
    parser.add_argument("--debug", action="store_true", default=default, help="show tracebacks, and what Ray says")


def launch_overrides(options: argparse.Namespace) -> list[str]:
    executor = [f"cluster.executor={options.executor}"] if options.executor else []
    return [*options.overrides, *executor]


def moved_from_temporary(config: "ExperimentConfig", console: "Console") -> list[str]:
    """Return the override that keeps runs of a submitted job, whose working directory goes when it ends."""
    from coordexp.cli.console import show
    from coordexp.runs.stop import is_temporary

    if not is_temporary(config.experiment.runs_dir):
        return []
    runs_dir = Path.home() / "coordexp-runs"
    show(console, f"runs go to {runs_dir}: the submitted working directory is temporary")
    return [f"experiment.runs_dir={runs_dir}"]


def number(kind: type[_Number], low: float, high: float) -> Callable[[str], _Number]:
    """Return a parser of numbers between limits."""

    def parse(text: str) -> _Number:
        try:
            value = kind(text)
        except ValueError:  # argparse would name our function
            whole = "whole " if kind is int else ""
            raise argparse.ArgumentTypeError(f"expected a {whole}number, got {show(text)}") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"expected a number from {low:,} to {high:,}, got {show(text)}")
        return value

    return parse


positive = number(int, 1, MAX_COUNT)
seed = number(int, 0, MAX_SEED)


def settings_of(kind: Callable[..., _Value], options: argparse.Namespace, **others: object) -> _Value:
    """Return settings of a dataclass: each field has the option of its name, if there is one, or what is given here."""
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(kind)  # pyright: ignore
    return kind(**{one.name: getattr(options, one.name) for one in fields if hasattr(options, one.name)} | others)


def named_files(texts: Sequence[str]) -> dict[str, list[Path]]:
    """Return the files of each name of ``NAME=FILE,FILE``; a folder is one file of it."""
    found: dict[str, list[Path]] = {}
    for text in texts:
        name, _, paths = text.partition("=")
        files = _split_at_commas(paths)
        if not name.strip() or not all(files):
            raise ConfigError(f"got {text!r}, expected NAME=FILE, or NAME=FILE,FILE for several seeds")
        if not is_name(name) or len(name) > _MAX_NAME:
            raise ConfigError(
                f"the name {show(name)} is no name: expected printable text of at most {_MAX_NAME} letters"
            )
        if name in found:
            raise ConfigError(f"the name {name!r} is there twice; files of one detector are NAME=FILE,FILE")
        found[name] = [Path(path) for path in files]
    return found


def _split_at_commas(text: str) -> list[str]:
    """Return the paths of ``FILE,FILE``; a comma belongs to a name where the longest such path is one that exists."""
    parts = text.split(",")
    paths: list[str] = []
    start = 0
    while start < len(parts):
        joined = [",".join(parts[start:stop]) for stop in range(len(parts), start + 1, -1)]
        existing = [path for path in joined if Path(path).exists()]
        paths.append(existing[0] if existing else parts[start])
        start += paths[-1].count(",") + 1
    return paths


def add_aliases(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--aliases", type=Path, help='JSON of further names: {"crimson disc": "red circle"}')


def read_aliases(path: Path | None) -> dict[str, str]:
    """Return further names of categories -> names of the annotation file; none without a file."""
    from coordexp.files import read_model

    if path is None:
        return {}
    return read_model(dict[str, str], path, what='an object such as {"crimson disc": "red circle"}')


def by_name(
    option: str, texts: Sequence[str], names: Sequence[str], parse: Callable[[str], _Value]
) -> dict[str, _Value]:
    """Return the value of each name that ``[NAME=]VALUE`` gives one; without a name it is that of all."""
    found: dict[str, _Value] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        if name and name not in names:
            raise ConfigError(f"{option} {text}: there is no {name!r}; expected {', '.join(names)}")
        found |= dict.fromkeys([name] if name else names, parse(value))
    return found
