"""Inputs damaged as people, disks and other tools do: each is used, or refused in one sentence, within ten seconds.

python -m tests.fuzz.run                     # 2,000 inputs of all kinds
python -m tests.fuzz.run --inputs 500
python -m tests.fuzz.run coco --seed 17      # one input again, with its traceback
"""

import argparse
import contextlib
import io
import random
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Generator
from pathlib import Path
from types import FrameType

from coordexp.cli.console import run_command
from tests.fuzz.targets import TARGETS, Target

MAX_SECONDS = 10.0
MAX_LINE = 2_000
ALL = 2_000


class HangError(BaseException):
    """It took too long. No Exception, so that nothing that reads takes it for damage."""


def read_damaged(target: Target, seed: str, good: Path, *, debug: bool = False) -> str | None:
    """Damage a copy of a good input and read it as the command line would; return how it escaped, None if it did not.

    Args:
        target: kind of the input.
        seed: of the damage.
        good: folder of the good input.
        debug: print what is said, and the traceback.
    """
    said = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="coordexp-fuzz-") as scratch:
        folder = Path(scratch) / "input"
        shutil.copytree(good, folder, symlinks=True)
        target.damage(folder, random.Random(seed))

        def read() -> None:
            target.read(folder)

        try:
            with _deadline(), warnings.catch_warnings(), contextlib.redirect_stderr(said):
                warnings.simplefilter("ignore")
                code = run_command(read, debug=debug)
        except (Exception, HangError) as error:  # noqa: BLE001 - whatever comes out here is an escape
            return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
    text = said.getvalue()
    if debug:
        sys.stderr.write(text)
    if code not in (0, 2):
        return text.strip().splitlines()[-1][:300]
    longest = max(map(len, text.splitlines()), default=0)
    return f"a line of {longest:,} characters: {text[:100]!r}" if longest > MAX_LINE and not debug else None


@contextlib.contextmanager
def _deadline() -> Generator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise HangError(f"longer than {MAX_SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def read_all(inputs: int, names: list[str]) -> int:
    """Read inputs of these targets, print those that escape as the command that reads them again; return how many."""
    whole = sum(TARGETS[name].share for name in names)
    escapes, read = 0, 0
    with tempfile.TemporaryDirectory(prefix="coordexp-good-") as root:
        for name in names:
            target, good = TARGETS[name], Path(root) / name
            good.mkdir()
            target.make(good)
            for number in range(max(1, round(inputs * target.share / whole))):
                read += 1
                escape = read_damaged(target, f"{name}/{number}", good)
                if escape is not None and escape.startswith(HangError.__name__):
                    escape = read_damaged(target, f"{name}/{number}", good)  # one slow reading of a busy machine
                if escape is not None:
                    escapes += 1
                    print(f"python -m tests.fuzz.run {name} --seed {number}    # {escape}", flush=True)
    print(f"{read:,} inputs, {escapes} escapes")
    return escapes


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"kinds of input: {', '.join(TARGETS)} (all)")
    parser.add_argument("--inputs", type=int, default=ALL, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, help="one input of one target, with its traceback")
    parser.add_argument("--keep", type=Path, help="with --seed: leave the damaged input there")
    options = parser.parse_args()
    if unknown := set(options.targets) - TARGETS.keys():
        parser.error(f"no target {min(unknown)}; there are {', '.join(TARGETS)}")
    if options.seed is None:
        return int(read_all(options.inputs, options.targets or list(TARGETS)) > 0)
    (name,) = options.targets
    with tempfile.TemporaryDirectory(prefix="coordexp-good-") as good:
        TARGETS[name].make(Path(good))
        if options.keep is not None:
            shutil.copytree(good, options.keep, symlinks=True)
            TARGETS[name].damage(options.keep, random.Random(f"{name}/{options.seed}"))
        escape = read_damaged(TARGETS[name], f"{name}/{options.seed}", Path(good), debug=True)
    print(f"{name} {options.seed}: {escape or 'no escape'}")
    return int(escape is not None)


if __name__ == "__main__":
    sys.exit(main())
