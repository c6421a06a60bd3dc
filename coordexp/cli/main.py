"""``coordexp VERB``: the parser, and how a verb is run.

A verb imports what it needs when it runs, not at the top of its file: ``coordexp --help`` imports every verb, and would
otherwise wait for torch.
"""

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

# Each verb is a module with ``HELP``, ``add_arguments(parser)`` and ``run(options)``, which returns the exit code (None
# is 0). ``--help`` prints the module's docstring as the description of the verb.
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
    """Run one verb and return its exit code.

    Args:
        argv: the words after ``coordexp``; None: those of the process.
    """
    # A terminal may have an encoding without some letters, as Latin-1. They are printed as question marks; otherwise
    # one name of a category would end the command.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    # matplotlib warns, with a path of its own, if HOME cannot be written. Nobody has to do anything about it.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    options = parse(sys.argv[1:] if argv is None else argv)

    # Before Ray starts, whose processes inherit this environment: torch would wait there for ranks that do not exist.
    sentence = ranks.ignore_launchers()
    if sentence is not None:
        say(sentence)
    # The hub's client reads this when it is imported, here and in workers. Its own lines on a hub that does not answer
    # would stand beside our one sentence.
    if not options.debug:
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    with log_lines(verbose=options.verbose, quiet=options.quiet):
        return run_command(lambda: options.run(options), debug=options.debug)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line, in which ``KEY=VALUE`` may stand before, between and after options.

    argparse fills a positional argument of many words from one group of words only, so that words after the next option
    are left over. Here they are added to ``overrides``.

    Raises:
        SystemExit: after ``--help`` with code 0, and with code 2 after a message about words that no verb takes.
    """

    class Parser(argparse.ArgumentParser):
        """Masks secrets in its messages, and says what became of a command that was removed."""

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

    options, words_left = parser.parse_known_args(argv)
    if words_left:
        takes_overrides = "overrides" in options
        unknown = [word for word in words_left if not takes_overrides or word.startswith("-")]
        if unknown:
            hint = _key_hint(unknown[0]) if takes_overrides else ""
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        options.overrides.extend(words_left)
    return options


def _key_hint(option: str) -> str:
    """Return a hint for a key that was written as an option, as in ``--max_steps 20``; "" for any other option."""
    from coordexp.config.keys import known_keys

    name = option.lstrip("-").partition("=")[0].replace("-", "_")
    keys = [key for key in known_keys() if key == name or key.endswith(f".{name}")]
    return f"; a key is given without dashes, as in {keys[0]}=VALUE" if keys else ""
