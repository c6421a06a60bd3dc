"""Break things under a small ablation on Ray, a scenario after the other; each must end as if nothing had happened.

python -m tests.chaos.run                     # 50 scenarios; given again, it goes on where it was interrupted
python -m tests.chaos.run --only 17 --only 3  # some of them again
python -m tests.chaos.run --table             # what is known so far, for docs/LOG.md

The trainer is a small one but for every tenth scenario (--real N: every Nth); all else is the product's own.
"""

import argparse
import sys
import time
from pathlib import Path

from tests.chaos.faults import draw
from tests.chaos.judge import Result
from tests.chaos.scenario import Record, json_of, play, record_of, table, undisturbed
from tests.chaos.world import World, a_world

SCENARIOS = 50
REAL_EVERY = 10
REPLAYS = 3


def read_records(path: Path) -> dict[int, Record]:
    """Return what is known of each scenario; the last time it ran counts."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    records = [record_of(line) for line in lines]
    return {record.number: record for record in records}


def campaign(numbers: list[int], *, seed: int, real_every: int, folder: Path) -> list[Record]:
    """Play scenarios, with a line for each, and append what came of them to a file."""
    played: list[Record] = []
    references: dict[bool, tuple[Result, float]] = {}
    with a_world() as world:
        for number in numbers:
            is_real = bool(real_every) and number % real_every == real_every - 1
            if is_real not in references:
                references[is_real] = undisturbed(world, is_real=is_real, logs=folder)
                sys.stdout.write(f"undisturbed: {references[is_real][1]:.0f} s\n")
            record = _play(world, number, draw(seed, number), references[is_real], is_real=is_real, folder=folder)
            for _ in range(REPLAYS):  # the undisturbed command was slower, being the first one, or the machine busier
                if not record.came_too_late():
                    break
                expected, _ = references[is_real]
                references[is_real] = expected, 0.9 * record.commands[0].seconds
                record = _play(world, number, draw(seed, number), references[is_real], is_real=is_real, folder=folder)
            played.append(record)
            with (folder / "records.jsonl").open("a", encoding="utf-8") as handle:
                handle.write(json_of(played[-1]) + "\n")
            sys.stdout.write(f"{time.strftime('%H:%M:%S')} {played[-1].line()}\n")
            sys.stdout.flush()
    return played


def _play(
    world: World, number: int, faults: tuple, reference: tuple[Result, float], *, is_real: bool, folder: Path
) -> Record:
    expected, course = reference
    return play(world, number, faults, expected, course=course, is_real=is_real, logs=folder)


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", type=int, default=SCENARIOS, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of what breaks, and when (%(default)s)")
    parser.add_argument("--only", type=int, action="append", help="this scenario, also if it has run before")
    parser.add_argument("--real", type=int, default=REAL_EVERY, help="the real trainer in every Nth; 0: never")
    parser.add_argument("--folder", type=Path, help="for records and logs (runs/chaos/seed-SEED)")
    parser.add_argument("--table", action="store_true", help="print what is known so far")
    options = parser.parse_args()
    folder: Path = options.folder or Path("runs/chaos") / f"seed-{options.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    known = read_records(folder / "records.jsonl")
    if not options.table:
        numbers = options.only or [number for number in range(options.scenarios) if number not in known]
        campaign(numbers, seed=options.seed, real_every=options.real, folder=folder)
        known = read_records(folder / "records.jsonl")
    records = [known[number] for number in sorted(known)]
    sys.stdout.write(table(records))
    return int(any(record.problems for record in records))


if __name__ == "__main__":
    sys.exit(main())
