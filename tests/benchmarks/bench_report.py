"""What a report and a comparison take on made-up experiments of COCO's size, against their limits.

    python tests/benchmarks/bench_report.py [--images 5000] [--part three|twelve|compare ...]

``three``: the report of 3 groups, 60 s; ``twelve``: of 12 groups x 5 seeds, 180 s; ``compare``: of two files, 20 s;
each on 5,000 images with 2,000 resamples. The experiment is made first (``large_experiment.py``; minutes). A command
runs as a user gives it, on two quiet cores: wall-clock, and the memory of all its processes at
its peak. Exit code 1 where one takes longer.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from large_experiment import NAME, make_experiment

LIMITS = {"three": (3, 1, 60), "twelve": (12, 5, 180), "compare": (2, 1, 20)}  # groups, seeds, seconds


def run_command(arguments: Sequence[str]) -> tuple[float, float]:
    """Return the seconds of a command and the GB of its processes at their peak; what they share counts once."""
    started, peak = time.perf_counter(), 0
    process = psutil.Popen([sys.executable, "-m", "coordexp", *arguments], stdout=subprocess.DEVNULL)
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):  # one has ended
            peak = max(peak, sum(one.memory_full_info().pss for one in [process, *process.children(recursive=True)]))
        time.sleep(0.5)
    if process.returncode:
        raise SystemExit(f"{arguments[0]}: exit code {process.returncode}")
    return time.perf_counter() - started, peak / 1e9


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
