"""``coordexp VERB``: the parser. What a verb needs is imported when it runs, so that ``--help`` is quick."""

import argparse
import io
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import NoReturn

from coordexp.cli import (
    ablation,
    compare,
    doctor,
    evaluate,
    expand_vocab,
    inspect,
    merge,
    new,
    predict,
    prepare,
    report,
    sweep,
    train,
    ui,
)
from coordexp.cli.arguments import add_debug
from coordexp.cli.console import run_command, safe, say
from coordexp.cli.log_lines import add_verbosity, log_lines
from coordexp.runs import ranks

# Each is a module with ``HELP``, ``add_arguments(parser)`` and ``run(options)``, which returns the exit code (None: 0);
# its docstring is the verb's description.
VERBS: Mapping[str, ModuleType] = {
    "ablation": ablation,
    "sweep": sweep,
    "train": train,
    "evaluate": evaluate,
    "predict": predict,
    "compare": compare,
    "report": report,
    "ui": ui,
    "doctor": doctor,
    "inspect": inspect,
    "new": new,
    "prepare": prepare,
    "expand-vocab": expand_vocab,
    "merge": merge,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a question mark for what a terminal's encoding lacks, as Latin-1
            stream.reconfigure(errors="replace")
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # where HOME cannot be written it warns, with its own paths
    options = parse(sys.argv[1:] if argv is None else argv)
    if (ignored := ranks.ignore_launchers()) is not None:  # here for Ray's processes too, which get this environment
        say(ignored)
    if not options.debug:  # read when its client is imported, here and in workers: ours is the one sentence on it
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    with log_lines(verbose=options.verbose, quiet=options.quiet):
        return run_command(lambda: options.run(options), debug=options.debug)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse arguments whose ``overrides`` (``KEY=VALUE``) may stand before, between and after options."""

    class Parser(argparse.ArgumentParser):
        """Repeats what it refuses as every other sentence does, and says what was removed."""

        def error(self, message: str) -> NoReturn:
            from coordexp.config.removed import removed_command

            super().error(removed_command(argv) or safe(message))

    parser = Parser(prog="coordexp", description="Controlled experiments on coordinate losses.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for name, verb in VERBS.items():
        arguments = verbs.add_parser(
            name, help=verb.HELP, description=verb.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        arguments.set_defaults(run=verb.run)
        verb.add_arguments(arguments)
        add_debug(arguments)
        add_verbosity(arguments)
    options, others = parser.parse_known_args(argv)
    if others:
        takes_overrides = "overrides" in options
        unknown = [text for text in others if not takes_overrides or text.startswith("-")]
        if unknown:
            hint = _meant(unknown[0]) if takes_overrides else ""
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        options.overrides.extend(others)
    return options


def _meant(option: str) -> str:
    """Return a hint for a key that is written as an option, as in ``--max_steps 20``."""
    from coordexp.config.keys import known_keys

    name = option.lstrip("-").partition("=")[0].replace("-", "_")
    found = [key for key in known_keys() if key == name or key.endswith(f".{name}")]
    return f"; a key is given without dashes, as in {found[0]}=VALUE" if found else ""
