"""Options that several verbs take, and how their values are read."""

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
    """Add ``--config`` and the ``KEY=VALUE`` overrides of a configuration."""
    config_help = "YAML file, here or among those that come with coordexp (%(default)s)"
    parser.add_argument("--config", type=Path, default=default, help=config_help)
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="such as training.max_steps=20; VALUE is YAML"
    )


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print what would run, and run nothing")


def add_plain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plain", action="store_true", help="print lines, as into a file, and no board in a terminal")


def add_launch(parser: argparse.ArgumentParser) -> None:
    """Add the options that an ablation and a sweep share, beside those of their configuration."""
    add_dry_run(parser)
    parser.add_argument("--fresh", action="store_true", help="start over; what is there is moved aside")
    add_plain(parser)
    parser.add_argument("--executor", choices=("tune", "inline"), help="tune: on Ray; inline: here, one by one")


def add_debug(parser: argparse.ArgumentParser, *, default: bool | str = False) -> None:
    parser.add_argument("--debug", action="store_true", default=default, help="show tracebacks, and what Ray says")


def launch_overrides(options: argparse.Namespace) -> list[str]:
    """Return the overrides of the command line, with ``--executor`` among them."""
    overrides = list(options.overrides)
    if options.executor:
        overrides.append(f"cluster.executor={options.executor}")
    return overrides


def moved_from_temporary(config: "ExperimentConfig", console: "Console") -> list[str]:
    """Return the override that moves the runs out of a temporary folder; an empty list if they are not in one.

    Ray deletes the working directory of a submitted job when the job ends, and the runs would go with it.
    """
    from coordexp.cli.console import show
    from coordexp.runs.stop import is_temporary

    if not is_temporary(config.experiment.runs_dir):
        return []
    runs_dir = Path.home() / "coordexp-runs"
    show(console, f"runs go to {runs_dir}: the submitted working directory is temporary")
    return [f"experiment.runs_dir={runs_dir}"]


def number(kind: type[_Number], low: float, high: float) -> Callable[[str], _Number]:
    """Return a parser of numbers from ``low`` to ``high``, for ``type=`` of an option."""

    def parse(text: str) -> _Number:
        try:
            value = kind(text)
        except ValueError:  # argparse's own message would name this function: "invalid parse value"
            whole = "whole " if kind is int else ""
            raise argparse.ArgumentTypeError(f"expected a {whole}number, got {show(text)}") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"expected a number from {low:,} to {high:,}, got {show(text)}")
        return value

    return parse


positive = number(int, 1, MAX_COUNT)
seed = number(int, 0, MAX_SEED)


def settings_of(kind: Callable[..., _Value], options: argparse.Namespace, **others: object) -> _Value:
    """Build a dataclass of settings: each field takes the option of the same name, if there is one.

    Args:
        kind: the dataclass.
        options: what was typed.
        **others: fields that no option has, or that are not as they were typed.
    """
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(kind)  # pyright: ignore
    names = [field.name for field in fields if hasattr(options, field.name)]
    typed = {name: getattr(options, name) for name in names}
    return kind(**typed | others)


def named_files(texts: Sequence[str]) -> dict[str, list[Path]]:
    """Return the files of each name, from texts ``NAME=FILE,FILE``; a folder counts as one file.

    Raises:
        ConfigError: if a text has another form, a name cannot be printed, or a name stands twice.
    """
    files_by_name: dict[str, list[Path]] = {}
    for text in texts:
        name, _, paths = text.partition("=")
        files = _split_at_commas(paths)
        if not name.strip() or not all(files):
            raise ConfigError(f"got {text!r}, expected NAME=FILE, or NAME=FILE,FILE for several seeds")
        if not is_name(name) or len(name) > _MAX_NAME:
            raise ConfigError(
                f"the name {show(name)} is no name: expected printable text of at most {_MAX_NAME} letters"
            )
        if name in files_by_name:
            raise ConfigError(f"the name {name!r} is there twice; files of one detector are NAME=FILE,FILE")
        files_by_name[name] = [Path(path) for path in files]
    return files_by_name


def _split_at_commas(text: str) -> list[str]:
    """Return the paths of ``FILE,FILE``.

    The name of a file may hold a comma, as in ``a=fair, 2.json``. So at each place the longest text that is the path of
    an existing file is taken as one path. If there is none, the path ends at the next comma.
    """
    pieces = text.split(",")
    paths: list[str] = []
    start = 0
    while start < len(pieces):
        with_commas = [",".join(pieces[start:stop]) for stop in range(len(pieces), start + 1, -1)]
        existing = [path for path in with_commas if Path(path).exists()]
        path = existing[0] if existing else pieces[start]
        paths.append(path)
        start += path.count(",") + 1
    return paths


def add_aliases(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--aliases", type=Path, help='JSON of further names: {"crimson disc": "red circle"}')


def read_aliases(path: Path | None) -> dict[str, str]:
    """Return the category of the annotation file that each further name means; an empty dict without a file."""
    from coordexp.files import read_model

    if path is None:
        return {}
    return read_model(dict[str, str], path, what='an object such as {"crimson disc": "red circle"}')


def by_name(
    option: str, texts: Sequence[str], names: Sequence[str], parse: Callable[[str], _Value]
) -> dict[str, _Value]:
    """Return the value that ``[NAME=]VALUE`` gives to each name; a value without a name holds for all of them.

    Args:
        option: how the option is called, for a message.
        texts: what was typed, in this order: of two values for one name the later one holds.
        names: the names that may be given a value.
        parse: turns the text of a value into the value.

    Raises:
        ConfigError: if a text names none of ``names``.
    """
    values: dict[str, _Value] = {}
    for text in texts:
        name, _, value_text = text.rpartition("=")
        if name and name not in names:
            raise ConfigError(f"{option} {text}: there is no {name!r}; expected {', '.join(names)}")
        value = parse(value_text)
        for named in [name] if name else names:
            values[named] = value
    return values
