"""How long commands take to begin, beside ``python -c pass``: wall-clock and CPU seconds, medians of several.

    python tests/benchmarks/bench_startup.py [TIMES]      # default: 5

The commands take turns, so that other work on the machine falls on all of them alike.
"""

import resource
import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "coordexp --help": ["-m", "coordexp", "--help"],
    "coordexp report --help": ["-m", "coordexp", "report", "--help"],
    "coordexp ablation --dry-run": ["-m", "coordexp", "ablation", "--dry-run"],
    "python -c 'import torch'": ["-c", "import torch"],
}


def measure(arguments: list[str]) -> tuple[float, float]:
    """Return wall-clock and CPU seconds of one process."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(times: int) -> None:
    """Print a line for each command."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    for _ in range(times):
        for name, arguments in COMMANDS.items():
            found[name].append(measure(arguments))
    nothing = statistics.median(wall for wall, _ in found["python -c pass"])
    for name, measured in found.items():
        wall, cpu = (statistics.median(column) for column in zip(*measured, strict=True))
        print(f"{name:30} {wall:6.2f} s   CPU {cpu:6.2f} s   {wall / nothing:6.1f} x python -c pass")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
