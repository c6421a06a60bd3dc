"""What a report and a comparison take on made-up experiments of COCO's size, against their limits.

    python tests/benchmarks/bench_report.py [--images 5000] [--part three|twelve|compare ...]

``three``: the report of 3 groups, 60 s; ``twelve``: of 12 groups x 5 seeds, 180 s; ``compare``: of two files, 20 s;
each on 5,000 images with 2,000 resamples. The experiment is made first (``large_experiment.py``; minutes). A command
runs as a user gives it, with an empty cache, on two quiet cores: wall-clock, and the memory of all its processes at
its peak. Exit code 1 where one takes longer.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from large_experiment import NAME, make_experiment

LIMITS = {"three": (3, 1, 60), "twelve": (12, 5, 180), "compare": (2, 1, 20)}  # groups, seeds, seconds


def tree_bytes(root: int) -> int:
    """Return the memory of a process and of all below it; what they share counts once (PSS)."""
    total, todo = 0, [root]
    while todo:
        pid = todo.pop()
        try:
            total += int(Path(f"/proc/{pid}/smaps_rollup").read_text().partition("\nPss:")[2].split()[0]) * 1024
            for task in Path(f"/proc/{pid}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except (OSError, IndexError, ValueError):  # it has ended
            continue
    return total


def run_command(arguments: Sequence[str]) -> tuple[float, float]:
    """Return the seconds of a command and the GB of its processes at their peak."""
    started, peak, over = time.perf_counter(), 0, threading.Event()
    process = subprocess.Popen([sys.executable, "-m", "coordexp", *arguments], stdout=subprocess.DEVNULL)

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.5):
            peak = max(peak, tree_bytes(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    seconds = time.perf_counter() - started
    over.set()
    watcher.join()
    if code:
        raise SystemExit(f"{arguments[0]}: exit code {code}")
    return seconds, peak / 1e9


def main() -> int:
    """Make each experiment, and run its command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=5000, help="of the validation split (default: %(default)s)")
    parser.add_argument("--part", action="append", choices=tuple(LIMITS), help="only this part; may be repeated")
    options = parser.parse_args()
    slow = 0
    for part in options.part or LIMITS:
        groups, seeds, limit = LIMITS[part]
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            make_experiment(folder, groups=groups, seeds=seeds, images=options.images)
            arguments = ["report", NAME, "--runs-dir", scratch]
            if part == "compare":
                found = "eval/final/constrained/detections.expected.json"
                arguments = ["compare", "--annotations", f"{folder}/data/instances_val.json"]
                arguments += ["--output", f"{folder}/out"]
                arguments += [f"{group}={folder}/{NAME}/{group}-s0/{found}" for group in "AB"]
            load = os.getloadavg()[0]
            seconds, gigabytes = run_command(arguments)
        slow += seconds > limit
        verdict = "met" if seconds <= limit else "NOT met"
        print(f"{part:8} {seconds:6.1f} s, limit {limit} s: {verdict}; peak {gigabytes:.2f} GB; load before {load:.1f}")
    return int(slow > 0)


if __name__ == "__main__":
    sys.exit(main())
