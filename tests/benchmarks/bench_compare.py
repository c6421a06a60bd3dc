"""``coordexp compare`` on 5,000 images x 30 detections x 3 detectors, and what reading a large file takes.

``python tests/benchmarks/bench_compare.py [IMAGES] [RESAMPLES] [MEBIBYTES]`` (default 5000 2000 300). The floor is what
the statistics alone take, from arrays that are in memory; the rest is reading, measuring, charts and the page. Times
are wall-clock, on as many cores as there are; a loaded machine, whose load is printed, takes longer.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_statistics import GROUPS, write_data

from coordexp.detection.average_precision import AVERAGE_PRECISIONS
from coordexp.detection.detections import read_results
from coordexp.statistics.bootstrap import read_matches, resampled
from coordexp.statistics.permutation import swap_test


def floor_seconds(folder: Path, resamples: int) -> float:
    """Return what resampling every file and swapping every pair takes, files read and functions compiled before."""
    matches = read_matches(folder / "instances.json", {name: folder / f"{name}.json" for name in GROUPS}, metric="AP")
    metric = AVERAGE_PRECISIONS["AP"]
    resampled(matches, "AP", resamples=20, seed=0)
    pairs = [(a, b) for i, a in enumerate(GROUPS) for b in GROUPS[i + 1 :]]
    swap_test([(matches[GROUPS[0]], matches[GROUPS[1]])], metric, resamples=20, seed=0)
    started = time.perf_counter()
    resampled(matches, "AP", resamples=resamples, seed=0)
    for a, b in pairs:
        swap_test([(matches[a], matches[b])], metric, resamples=resamples, seed=0)
    return time.perf_counter() - started


def compare_seconds(folder: Path, resamples: int) -> float:
    """Return what the whole command takes in a process of its own."""
    files = [f"{name}={folder}/{name}.json" for name in GROUPS]
    command = [sys.executable, "-m", "coordexp", "compare", "--annotations", f"{folder}/instances.json", *files]
    started = time.perf_counter()
    subprocess.run(
        [*command, "--resamples", str(resamples), "--output", f"{folder}/out", "--format", "json"],
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - started


def peak_bytes() -> int:
    """Return the most memory this program has held; ru_maxrss would begin with that of the one that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def measure_reading(path: Path) -> None:
    """Read one file and print seconds, and memory at its peak over the size of the file."""
    before = peak_bytes()
    started = time.perf_counter()
    number = len(read_results(path))
    seconds, size = time.perf_counter() - started, path.stat().st_size
    peak = peak_bytes()
    print(f"reading {size / 2**20:,.0f} MiB, {number:,} detections: {seconds:.1f} s, ", end="")
    print(f"{(peak - before) / size:.2f} x the file beside the {before / 2**20:,.0f} MiB of the process")


def main(num_images: int, resamples: int, mebibytes: int) -> None:
    """Print all."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_data(folder, num_images)
        whole = compare_seconds(folder, resamples)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        floor = floor_seconds(folder, resamples)
        size = f"{num_images:,} images x {len(GROUPS)} detectors x {resamples:,} resamples"
        cpu = used.ru_utime + used.ru_stime
        print(f"{size}, {cores} cores, load {load:.1f}")
        print(f"coordexp compare {whole:.1f} s (CPU {cpu:.1f} s); resamples and swaps alone {floor:.1f} s", flush=True)
        print(f"ratio {whole / floor:.2f}", flush=True)
        content = (folder / "A.json").read_text()
        copies = max(1, (mebibytes << 20) // len(content))
        (folder / "large.json").write_text(f"[{', '.join([content.strip()[1:-1]] * copies)}]")
        subprocess.run([sys.executable, __file__, "read", str(folder / "large.json")], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["read"]:
        measure_reading(Path(sys.argv[2]))
    else:
        given = [int(text) for text in sys.argv[1:]]
        main(*given, *(5000, 2000, 300)[len(given) :])
