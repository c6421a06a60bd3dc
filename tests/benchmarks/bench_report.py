"""The report of a large experiment: 12 groups x 5 seeds on 5,000 images, 2,000 resamples, everything on the page.

    python tests/benchmarks/bench_report.py [--groups 12] [--seeds 5] [--images 5000] [--detections 10] [--folder DIR]

Makes the experiment first (``large_experiment.py``; minutes), or takes the one that lies in ``--folder``. The command
runs as a user runs it, in a process of its own with the statistics' cache empty; its parts are timed from within:
wall-clock seconds, CPU seconds of all threads and processes, and the memory of all of them together at its peak.
"""

import argparse
import functools
import importlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from large_experiment import NAME, make_experiment

PARTS = (
    ("coordexp.report.study.load", "load_experiments", "load from MLflow"),
    ("coordexp.report.study.study", "check_fairness", "fairness"),
    ("coordexp.statistics.comparison", "read_matches", "comparison: read and match"),
    ("coordexp.statistics.comparison", "resampled", "comparison: resamples"),
    ("coordexp.statistics.comparison", "swap_test", "comparison: swaps of all pairs"),
    ("coordexp.statistics.comparison", "compare_readings", "comparison, whole"),
    ("coordexp.statistics.convergence", "convergence", "convergence"),
    ("coordexp.statistics.decomposition", "decompose", "decomposition"),
    ("coordexp.report.study.study", "group_breakdowns", "breakdowns"),
    ("coordexp.report.study.study", "make_gallery", "gallery"),
    ("coordexp.report.study.study", "group_curves", "coordinate distributions"),
    ("coordexp.report.write", "study_of", "study, whole"),
    ("coordexp.report.text.render", "print_report", "printed tables"),
    ("coordexp.report.write", "render_page", "page"),
    ("coordexp.report.write", "write_plots", "figures as files"),
    ("coordexp.report.write", "write_report", "page and files, whole"),
)


def cpu_seconds() -> float:
    """Return what this process, all its threads and its ended children have used."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def timed(label: str, function: Callable[..., object], found: dict[str, list[float]]) -> Callable[..., object]:
    """Return a function that adds what its calls take, of wall-clock and of CPU, to ``found``."""

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        wall, cpu = time.perf_counter(), cpu_seconds()
        try:
            return function(*args, **kwargs)
        finally:
            spent = found.setdefault(label, [0.0, 0.0])
            spent[0] += time.perf_counter() - wall
            spent[1] += cpu_seconds() - cpu

    return call


def report(arguments: list[str]) -> None:
    """Run the command with its parts timed, and print them."""
    started, found = time.perf_counter(), dict[str, list[float]]()
    from coordexp.cli.main import main

    importlib.import_module("coordexp.report.write")
    for module, name, label in PARTS:
        home = importlib.import_module(module)
        setattr(home, name, timed(label, getattr(home, name), found))
    code = main(arguments)
    wall = time.perf_counter() - started
    for label, (seconds, cpu) in found.items():
        print(f"{label:32} {seconds:7.1f} s   CPU {cpu:7.1f} s", file=sys.stderr)
    print(f"{'the command, imports included':32} {wall:7.1f} s   CPU {cpu_seconds():7.1f} s", file=sys.stderr)
    raise SystemExit(code)


def tree_bytes(root: int) -> int:
    """Return the memory of a process and of all below it, shared pages counted in each once by their share (PSS)."""
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


def run_command(folder: Path, resamples: int) -> None:
    """Run the report in a process of its own and print its time, its peak memory and the size of the page."""
    output = folder / NAME / "report"
    shutil.rmtree(output, ignore_errors=True)
    command = [
        sys.executable,
        __file__,
        "within",
        "report",
        NAME,
        "--runs-dir",
        str(folder),
        "--resamples",
        str(resamples),
    ]
    peak, over = 0, threading.Event()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def watch() -> None:
        nonlocal peak
        while not over.wait(1.0):
            peak = max(peak, tree_bytes(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    over.set()
    watcher.join()
    page = output / "report.html"
    print(f"peak memory {peak / 1e9:.2f} GB of all its processes; exit code {code}; ", end="")
    print(f"page {page.stat().st_size / 1e6:.1f} MB" if page.is_file() else "no page")


def main() -> None:
    """Make the experiment where there is none, and report on it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in (("groups", 12), ("seeds", 5), ("images", 5000), ("detections", 10), ("resamples", 2000)):
        parser.add_argument(f"--{name}", type=int, default=number, help="default: %(default)s")
    parser.add_argument("--folder", type=Path, help="where the experiment lies, or is put to stay")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.folder or Path(scratch)).absolute()
        if not (folder / "mlflow.db").is_file():
            sizes = {"groups": options.groups, "seeds": options.seeds, "images": options.images}
            make_experiment(folder, **sizes, per_image=options.detections)
        print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}", flush=True)
        run_command(folder, options.resamples)


if __name__ == "__main__":
    if sys.argv[1:2] == ["within"]:
        report(sys.argv[2:])
    else:
        main()
