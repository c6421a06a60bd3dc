"""Damaged inputs by the thousand: each must be used, or refused in one sentence, within ten seconds and two GB.

python -m tests.fuzz.run                     # 10,000 inputs of all kinds
python -m tests.fuzz.run --inputs 500
python -m tests.fuzz.run coco --seed 17      # one input again, with its traceback
"""

import argparse
import contextlib
import faulthandler
import io
import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Generator
from pathlib import Path
from types import FrameType

MAX_SECONDS = 10
MAX_BYTES = 2 * 2**30
MAX_LINE = 2_000
ALL = 10_000


class HangError(BaseException):
    """It took longer than ten seconds. No Exception, so that nothing that reads takes it for damage."""


def read_damaged(name: str, seed: int, good: Path, *, debug: bool = False) -> str | None:
    """Damage a copy of a good input and read it as the command line would; return how it escaped, None if it did not.

    Args:
        name: of the target.
        seed: of the damage.
        good: folder of the good input.
        debug: print what is said, and the traceback.
    """
    from coordexp.cli.console import run_command
    from tests.fuzz.targets import TARGETS

    target = TARGETS[name]
    said = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="coordexp-fuzz-") as scratch:
        folder = Path(scratch) / "input"
        shutil.copytree(good, folder, symlinks=True)
        target.damage(folder, random.Random(f"{name}/{seed}"))

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
    faulthandler.dump_traceback_later(6 * MAX_SECONDS, exit=True)  # for what never comes back to Python
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def shares(inputs: int, names: list[str]) -> dict[str, int]:
    """Return how many of all inputs each target gets."""
    from tests.fuzz.targets import TARGETS

    whole = sum(TARGETS[name].share for name in names)
    counts = {name: max(1, round(inputs * TARGETS[name].share / whole)) for name in names}
    largest = max(names, key=lambda name: counts[name])
    return counts | {largest: counts[largest] + inputs - sum(counts.values())}


def _work(inputs: int, names: list[str], begin: tuple[str, int] | None, heartbeat: Path) -> None:
    """Read every input from ``begin`` on, and print those that escape; without names, those of all targets.

    Where this process dies the heartbeat says at which.
    """
    from tests.fuzz.targets import TARGETS

    counts = shares(inputs, names or list(TARGETS))
    first_name, first_seed = begin or (next(iter(counts)), 0)
    ahead = list(counts)[: list(counts).index(first_name)]
    with tempfile.TemporaryDirectory(prefix="coordexp-good-") as root:
        for name, count in counts.items():
            first, began = first_seed if name == first_name else 0, time.monotonic()
            if name in ahead or first >= count:
                continue
            good = Path(root) / name
            good.mkdir()
            heartbeat.unlink(missing_ok=True)
            TARGETS[name].make(good)
            for seed in range(first, count):
                heartbeat.write_text(json.dumps([name, seed]))
                escape = read_damaged(name, seed, good)
                if escape is not None and escape.startswith(HangError.__name__):
                    escape = read_damaged(name, seed, good)  # on a busy machine one slow reading is no hang
                if escape:
                    sys.stdout.write(f"python -m tests.fuzz.run {name} --seed {seed}    # {escape}\n")
                    sys.stdout.flush()
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
                if peak > MAX_BYTES:
                    sys.stdout.write(f"python -m tests.fuzz.run {name} --seed {seed}    # {peak / 2**30:.1f} GiB\n")
                    sys.exit(3)
            sys.stderr.write(f"{name:12} {count - first:6,} inputs  {time.monotonic() - began:6.1f} s\n")
    heartbeat.unlink(missing_ok=True)


def _all(inputs: int, names: list[str]) -> int:
    """Let another process do the work, and begin behind the input at which it died, if it does.

    This one imports nothing of what is tested, which takes seconds.
    """
    escapes, begin = 0, None
    with tempfile.TemporaryDirectory() as scratch:
        heartbeat = Path(scratch) / "heartbeat"
        while True:
            work = json.dumps([inputs, names, begin, str(heartbeat)])
            command = [sys.executable, "-m", "tests.fuzz.run", "--work", work]
            worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert worker.stdout is not None
            for line in worker.stdout:
                escapes += 1
                sys.stdout.write(line)
                sys.stdout.flush()
            code = worker.wait()
            if code == 0:
                break
            if not heartbeat.is_file():
                return 1  # it did not begin; its traceback is on the screen
            name, seed = json.loads(heartbeat.read_text())
            escapes += 1
            sys.stdout.write(f"python -m tests.fuzz.run {name} --seed {seed}    # the process ended with {code}\n")
            begin = (name, seed + 1)
    sys.stdout.write(f"{inputs:,} inputs, {escapes} escapes\n")
    return int(escapes > 0)


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="kinds of input (all)")
    parser.add_argument("--inputs", type=int, default=ALL, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, help="one input of one target, with its traceback")
    parser.add_argument("--keep", type=Path, help="with --seed: leave the damaged input there")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        inputs, names, begin, heartbeat = json.loads(options.work)
        _work(inputs, names, begin, Path(heartbeat))
        return 0
    if options.seed is None and not options.targets:
        return _all(options.inputs, [])
    from tests.fuzz.targets import TARGETS

    if unknown := set(options.targets) - TARGETS.keys():
        parser.error(f"no target {min(unknown)}; there are {', '.join(TARGETS)}")
    if options.seed is None:
        return _all(options.inputs, options.targets)
    (name,) = options.targets
    with tempfile.TemporaryDirectory(prefix="coordexp-good-") as good:
        TARGETS[name].make(Path(good))
        if options.keep is not None:
            shutil.copytree(good, options.keep, symlinks=True)
            TARGETS[name].damage(options.keep, random.Random(f"{name}/{options.seed}"))
        escape = read_damaged(name, options.seed, Path(good), debug=True)
    sys.stdout.write(f"{name} {options.seed}: {escape or 'no escape'}\n")
    return int(escape is not None)


if __name__ == "__main__":
    sys.exit(main())
