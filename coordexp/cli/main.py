"""``python -m coordexp VERB``. What a verb needs is imported when it runs, so that ``--help`` is quick."""

import argparse
import errno
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console

from coordexp.cli import commands
from coordexp.errors import CoordExpError
from coordexp.files import is_disk_full

DEFAULT_CONFIG = Path("experiments/tiny.yaml")

_NARROW_PIPE = 120
_EXIT_BUG = 1
_EXIT_INPUT = 2
_EXIT_INTERRUPTED = 130
# What the machine refuses is no bug of ours: it is said in one sentence, like wrong input.
_MACHINE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["report"]:
        return commands.report(arguments[1:])
    options = parse_with_overrides(_parser(), arguments)
    command: Callable[[argparse.Namespace], int | None] = options.command
    return run_command(lambda: command(options), options.debug)


def run_command(function: Callable[[], int | None], debug: bool = False) -> int:
    """Call ``function`` and turn what it raises into one sentence on stderr and an exit code.

    Args:
        function: returns an exit code, or None for 0.
        debug: print the traceback as well.

    Returns:
        The function's own code; 2 for wrong input or a full disk; 130 when interrupted; 1 for a bug.
    """
    with _Outcome(debug) as outcome:
        outcome.exit_code = function() or 0
    return outcome.exit_code


def parse_with_overrides(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse arguments whose ``overrides`` (``KEY=VALUE``) may stand before, between and after options."""
    options, others = parser.parse_known_args(argv)
    if others:
        overrides: list[str] | None = getattr(options, "overrides", None)
        unknown = [text for text in others if overrides is None or text.startswith("-")]
        if overrides is None or unknown:
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        overrides.extend(others)
    return options


def launch(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    function: Callable[[argparse.Namespace, Console], int],
) -> int:
    """Run a launch script: parse, call, turn errors into sentences; return the exit code.

    Args:
        parser: with what :func:`add_config_arguments` adds.
        argv: the arguments; None for those of the process.
        function: does the work, and prints on the console it is given, which is wide enough for tables in a pipe.
    """
    options = parse_with_overrides(parser, sys.argv[1:] if argv is None else argv)
    console = Console(width=None if sys.stdout.isatty() else _NARROW_PIPE)
    return run_command(lambda: function(options, console), options.debug)


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--config``, ``--dry-run``, ``--debug`` and ``KEY=VALUE``, which every launch command has."""
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="YAML of the experiment (%(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="print what would run, and run nothing")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="such as training.max_steps=20; VALUE is YAML"
    )


class _Outcome:
    """Catches what a command raises, genuine bugs included, and says it."""

    def __init__(self, debug: bool) -> None:
        self.exit_code = 0
        self._debug = debug

    def __enter__(self) -> "_Outcome":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, Exception | KeyboardInterrupt):
            return False
        if self._debug:
            traceback.print_exception(error)
        self.exit_code, message = _explained(error, debug=self._debug)
        sys.stderr.write(f"{message}\n")
        return True


def _explained(error: BaseException, *, debug: bool) -> tuple[int, str]:
    if isinstance(error, KeyboardInterrupt):
        return _EXIT_INTERRUPTED, "interrupted"
    if is_disk_full(error):
        places = (_place(link) for link in _chain(error) if isinstance(link, OSError) and link.filename)
        return _EXIT_INPUT, f"error: no space left on {next(places, 'the device')}; free some, or write elsewhere"
    if isinstance(error, CoordExpError):
        return _EXIT_INPUT, f"error: {error}"
    if isinstance(error, OSError) and error.errno in _MACHINE_ERRNOS:
        return _EXIT_INPUT, f"error: {_place(error)}: {error.strerror}"
    hint = "" if debug else "; --debug shows where"
    first_line = (str(error).splitlines() or [""])[0]
    return _EXIT_BUG, f"internal error: {type(error).__name__}: {first_line}{hint}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _place(error: BaseException) -> str:
    return str(error.filename) if isinstance(error, OSError) and error.filename else "the device"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m coordexp", description="Controlled experiments on coordinates.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    train = verbs.add_parser("train", help="train and evaluate one run, without Ray")
    train.add_argument("--group", help="one of ablation.groups (default: experiment.group)")
    train.add_argument("--seed", type=int, help="default: experiment.seed")
    add_config_arguments(train)
    train.set_defaults(command=commands.train)

    prepare = verbs.add_parser("prepare", help="write a data set").add_subparsers(required=True, metavar="DATA")
    _add_annotations(prepare.add_parser("coco", help="COCO annotations as JSONL, with a manifest"), "coco")
    _add_annotations(prepare.add_parser("lvis", help="LVIS annotations as JSONL, with a manifest"), "lvis")
    _add_shapes(prepare.add_parser("shapes", help="generated coloured shapes, as COCO files and as JSONL"))
    _add_doctor(verbs.add_parser("doctor", help="whether a run would start, without loading weights"))
    _add_inspect(verbs.add_parser("inspect", help="training samples: tokens by role, boxes drawn on the image"))
    evaluate = verbs.add_parser("evaluate", help="COCO AP of a checkpoint")
    add_evaluate_arguments(evaluate)
    _finish(evaluate, commands.evaluate)
    _add_merge(verbs.add_parser("merge", help="fold a trained adapter into its base"))
    _add_expand(verbs.add_parser("expand-vocab", help="add the coordinate tokens to a checkpoint"))
    verbs.add_parser("report", help="tables and curves of an experiment", add_help=False)
    return parser


def _add_annotations(parser: argparse.ArgumentParser, dialect: str) -> None:
    parser.add_argument("--annotations", type=Path, required=True, help="instances JSON")
    parser.add_argument("--images", type=Path, required=True, help="folder of the images")
    parser.add_argument("--output", type=Path, required=True, help="new folder for samples.jsonl and manifest.json")
    parser.add_argument("--max-objects", type=_count, help="keep this many of an image, the largest (default: all)")
    parser.add_argument("--ordering", choices=("top_left", "random"), default="top_left")
    parser.add_argument("--seed", type=_whole, default=0, help="of --ordering random (%(default)s)")
    boxes = parser.add_mutually_exclusive_group()
    boxes.add_argument("--coord-tokens", action="store_true", help="boxes as <|coord_k|> strings")
    boxes.add_argument("--numbers", action="store_false", dest="coord_tokens", help="boxes in [0, 1] (the default)")
    parser.add_argument("--workers", type=_count, help="images opened at once by --check-images headers (default: 8)")
    parser.add_argument("--max-bad-fraction", type=_fraction, default=0.0, help="bad records to accept (%(default)s)")
    parser.add_argument(
        "--check-images",
        choices=("none", "names", "headers"),
        default="names",
        help="names: files are there; headers: each is opened and its size compared, not decoded (%(default)s)",
    )
    parser.set_defaults(dialect=dialect)
    _finish(parser, commands.prepare_annotations)


def _add_shapes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--num-train", type=_count, default=2400)
    parser.add_argument("--num-val", type=_count, default=300)
    parser.add_argument("--seed", type=int, default=0)
    _finish(parser, commands.prepare_shapes)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="YAML of the experiment (%(default)s)")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE")
    _finish(parser, commands.doctor)


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="YAML of the experiment (%(default)s)")
    parser.add_argument("--num", type=_count, default=3, help="how many samples (%(default)s)")
    parser.add_argument("--split", choices=("train", "val"), default="train")
    parser.add_argument("--output", type=Path, help="folder of the drawn images (default: in the experiment's)")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE")
    _finish(parser, commands.inspect)


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what an evaluation needs, here or as a job on a cluster."""
    parser.add_argument("--model", required=True, help="embedded, a directory or a hub id")
    parser.add_argument("--adapter", type=Path, help="a directory that training saved")
    parser.add_argument("--annotations", type=Path, required=True, help="COCO instances JSON")
    parser.add_argument("--images", type=Path, required=True, help="folder of the images")
    parser.add_argument(
        "--output", type=Path, help="folder of the results (default: eval/NAME-ANNOTATIONS beside the checkpoint)"
    )
    parser.add_argument(
        "--num-images", type=_count, help="only so many, spread over the number of objects, always the same"
    )
    parser.add_argument("--decoding", nargs="+", choices=("constrained", "free"), default=["constrained", "free"])
    parser.add_argument("--score", choices=("coord", "desc", "coord_desc", "constant"), default="coord_desc")
    parser.add_argument("--batch-size", type=_count, default=16)
    parser.add_argument("--max-new-tokens", type=_count, default=512)
    parser.add_argument("--max-pixels", type=_count, help="image size limit (default: the checkpoint's own)")
    parser.add_argument("--prompt", help="the instruction of training, if it was another than the default")
    parser.add_argument("--aliases", type=Path, help='JSON of further names: {"crimson disc": "red circle"}')
    parser.add_argument("--threads", type=_count, help="CPU threads of a process; it can change last digits")


def _add_merge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--adapter", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--base", help="directory or hub id (default: what the adapter names)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output")
    parser.add_argument(
        "--format",
        choices=("hf", "peft-tokens"),
        default="hf",
        help="hf: a whole checkpoint; peft-tokens: an adapter for stock PEFT (default: %(default)s)",
    )
    parser.add_argument(
        "--vocab-init",
        choices=("mean", "numeric"),
        default="numeric",
        help="how training started new rows, for a base without coord tokens (default: %(default)s)",
    )
    _finish(parser, commands.merge)


def _add_expand(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="embedded, a directory or a hub id")
    parser.add_argument("--revision", help="of a hub id")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--init", choices=("mean", "numeric"), default="numeric", help="how new rows start")
    parser.add_argument("--structure", choices=("native", "spec"), default="native", help="which object markers")
    _finish(parser, commands.expand_vocab)


def _finish(parser: argparse.ArgumentParser, command: Callable[[argparse.Namespace], int | None]) -> None:
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.set_defaults(command=command)


def _count(text: str) -> int:
    return _at_least(1, text)


def _whole(text: str) -> int:
    return _at_least(0, text)


def _at_least(low: int, text: str) -> int:
    try:
        value = int(text)
    except ValueError:  # argparse would name our function
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None
    if value < low:
        raise argparse.ArgumentTypeError(f"expected at least {low}, got {value}")
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text}")
    return value
