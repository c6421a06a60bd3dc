"""How cost grows: each part at four sizes, with the slope of a line through the logarithms; 1 is linear.

    python tests/benchmarks/bench_scaling.py [--part NAME ...] [--output DIR]

Writes ``scaling.json`` after each point, and ``scaling.png`` and ``.svg`` with a panel for each part. CPU seconds, so
that other work on the machine falls out, the best of three where a point is quick. ``tune`` runs only where it is
asked for: 25, 100 and 400 sleeping runs on a local Ray take hours on two cores; wall-clock, since most is waiting.
"""

import argparse
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
COLUMNS = 3


@dataclass(frozen=True)
class Part:
    """What is measured: a name, what is counted along x, and the points as they are made: size, quantity, value."""

    over: str
    points: Callable[[Path], Iterator[tuple[float, str, float]]]


def cpu_seconds() -> float:
    """Return what this process and its ended children have used."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def seconds_of(function: Callable[[], object]) -> float:
    """Return the CPU seconds of a call, the best of three where it is quick."""
    times: list[float] = []
    while not times or (len(times) < 3 and times[0] < 1.0):
        started = cpu_seconds()
        function()
        times.append(cpu_seconds() - started)
    return min(times)


def head(scratch: Path) -> Iterator[tuple[float, str, float]]:
    """The split head and its losses, forward and backward, over supervised tokens: each size in its own processes."""
    del scratch
    for tokens in (1024, 2048, 4096, 8192):
        for quantity in ("seconds", "GB"):
            command = [sys.executable, __file__, "--one-head", str(tokens), quantity]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            yield tokens, quantity, float(done.stdout.splitlines()[-1])


def one_head(tokens: int, quantity: str) -> float:
    """Return the time of one step of the head over 32,000 entries, or what it adds to the memory of this process."""
    import torch
    from bench_head import SMALL, Sizes, make_batch, measure_memory, prepare, step

    sizes = Sizes(batch=1, tokens=tokens, vocab=32_000, hidden=512)
    if quantity == "GB":
        return measure_memory(sizes, "d", 0.25)["bytes"] / 1e9
    made = [
        (
            prepare(size, "d", device="cpu", dtype=torch.float32)["d"],
            make_batch(size, 0.25, device="cpu", dtype=torch.float32),
        )
        for size in (SMALL, sizes)
    ]
    step(*made[0])
    variant, batch = made[1]
    return seconds_of(lambda: step(variant, batch))


@functools.cache
def detections(folder: Path, num_images: int) -> tuple[Path, dict[str, Path]]:
    """Write ground truth and three files of detections of so many images, as ``bench_statistics`` has them."""
    from bench_statistics import GROUPS, write_data

    place = folder / str(num_images)
    place.mkdir(exist_ok=True)
    write_data(place, num_images)
    return place / "instances.json", {name: place / f"{name}.json" for name in GROUPS}


def scoring(scratch: Path) -> Iterator[tuple[float, str, float]]:
    """Matching one file and all its numbers of boxes, over images."""
    from coordexp.detection.box_evaluation import BoxEvaluation
    from coordexp.detection.detections import read_detections
    from coordexp.detection.ground_truth import read_ground_truth
    from coordexp.detection.metrics import measure

    for num_images in (300, 1250, 2500, 5000, 10_000):
        annotations, files = detections(scratch, num_images)
        truth = read_ground_truth(annotations)
        boxes = read_detections(files["A"], truth)
        seconds = seconds_of(lambda truth=truth, boxes=boxes: measure(BoxEvaluation(truth, boxes)))
        if num_images > 300:  # the first compiles
            yield num_images, "seconds", seconds


def bootstrap(scratch: Path, *, over: str) -> Iterator[tuple[float, str, float]]:
    """Resampling matched files: over images, over files, over resamples."""
    from coordexp.statistics.bootstrap import read_matches, resampled

    sizes = {"images": (1250, 2500, 5000, 10_000), "files": (3, 6, 12, 24), "resamples": (250, 500, 1000, 2000)}
    for size in sizes[over]:
        annotations, files = detections(scratch, size if over == "images" else 2500)
        read = read_matches(annotations, files, metric="AP")
        chosen = list(read.values()) * (size // 3 if over == "files" else 1)
        draw = functools.partial(
            resampled, dict(enumerate(chosen)), "AP", resamples=size if over == "resamples" else 256, seed=0
        )
        resampled(read, "AP", resamples=32, seed=0)
        yield size, "seconds", seconds_of(draw)


def pairs(scratch: Path) -> Iterator[tuple[float, str, float]]:
    """Comparing groups, resamples and swaps of all pairs, over the pairs: twins, and groups that differ clearly."""
    from coordexp.statistics.comparison import compare

    annotations, files = detections(scratch, 2500)
    for num_groups in (3, 4, 6, 9):
        groups = {f"{number}": {number: files["ABC"[number % 3]]} for number in range(num_groups)}
        for group, seeds in groups.items():  # bytes of its own, so that it is counted for itself
            own = scratch / f"group-{group}.json"
            own.write_text(next(iter(seeds.values())).read_text() + " " * int(group))
            groups[group] = {0: own}
        if num_groups == 3:
            compare(annotations, groups, resamples=20)
        seconds = seconds_of(lambda groups=groups: compare(annotations, groups, resamples=500))
        yield num_groups * (num_groups - 1) / 2, "seconds", seconds


def report(scratch: Path) -> Iterator[tuple[float, str, float]]:
    """The whole command on an experiment of 300 images, over its runs; 500 resamples, 24 pictures."""
    from large_experiment import make_experiment

    for groups, seeds in ((3, 2), (3, 8), (3, 32), (3, 64)):
        folder = scratch / f"report-{groups * seeds}"
        make_experiment(folder, groups=groups, seeds=seeds, images=300)
        command = [sys.executable, "-m", "coordexp", "report", "--runs-dir", str(folder), "--resamples", "500"]
        started = cpu_seconds()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        yield groups * seeds, "seconds", cpu_seconds() - started


def rows(scratch: Path) -> Iterator[tuple[float, str, float]]:
    """Sending a run's rows of twelve metrics to MLflow's sqlite, over rows."""
    from coordexp.runs.reporter import Row
    from coordexp.tracking import open_tracker

    tracker = open_tracker(f"sqlite:///{scratch}/rows.db", experiment="rows", artifact_root=scratch / "artifacts")
    parent = tracker.start_parent("rows", {}, {})
    names = ("learning_rate", "grad_norm", "mean_grad_norm", "clipped_fraction", "num_images", "num_supervised_tokens")
    names += tuple(f"{split}_{name}_loss" for split in ("train", "eval") for name in ("total", "text", "coord"))
    for number in (50, 250, 500, 1000, 2000):
        made = [Row(step, 1e9 + step, dict.fromkeys(names, 1 / step)) for step in range(1, number + 1)]
        run_id = tracker.start_run(
            f"r{number}", parent_id=parent, group="A", seed=number, fingerprint="f", params={}, tags={}
        )
        started = cpu_seconds()
        tracker.append_rows(run_id, made)
        if number > 50:  # the first loads what the others use
            yield number, "seconds", cpu_seconds() - started


def tune(scratch: Path) -> Iterator[tuple[float, str, float]]:
    """Sleeping runs through Tune and Train on a local Ray, two at once: wall-clock seconds less the sleeping."""
    del scratch
    for number in (6, 25, 100, 400):
        groups, seeds = (number, 1) if number < 10 else (number // 5, 5)
        command = [sys.executable, str(HERE / "simulate_cluster.py"), "--gpus", "2", "--gpus-per-run", "1"]
        command += ["--groups", str(groups), "--seeds", str(seeds), "--seconds", "2", "--spread", "0"]
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        yield number, "seconds", time.perf_counter() - started - 2 * number / 2


PARTS = {
    "head": Part("supervised tokens", head),
    "scoring": Part("images", scoring),
    "bootstrap-images": Part("images", functools.partial(bootstrap, over="images")),
    "bootstrap-files": Part("files (groups x seeds)", functools.partial(bootstrap, over="files")),
    "bootstrap-resamples": Part("resamples", functools.partial(bootstrap, over="resamples")),
    "pairs": Part("pairs of groups", pairs),
    "report": Part("runs", report),
    "rows": Part("rows", rows),
    "tune": Part("runs", tune),
}


def slope(points: list[tuple[float, float]]) -> float:
    """Return the slope of the line through the logarithms."""
    x, y = np.log(np.array(points)).T
    return float(np.polyfit(x, y, 1)[0])


def draw(found: dict[str, dict[str, list[tuple[float, float]]]], output: Path) -> None:
    """Draw a panel for each part and quantity."""
    from matplotlib.figure import Figure

    panels = [(part, quantity, points) for part, by in found.items() for quantity, points in by.items()]
    lines = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(4 * COLUMNS, 3 * lines), layout="constrained")
    for place, (part, quantity, points) in enumerate(panels, start=1):
        axes = figure.add_subplot(lines, COLUMNS, place)
        x, y = np.array(points).T
        axes.loglog(x, y, "o-", label=f"slope {slope(points):.2f}" if len(points) > 1 else "")
        axes.loglog(x, y[-1] * x / x[-1], ":", color="gray", label="linear")
        axes.set_title(part)
        axes.set_xlabel(PARTS[part].over)
        axes.set_ylabel(quantity)
        axes.legend()
    for form in ("png", "svg"):
        figure.savefig(output / f"scaling.{form}")


def main() -> None:
    """Measure the parts that are asked for, and write what there is after each point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, nargs="+", default=[name for name in PARTS if name != "tune"])
    parser.add_argument("--output", type=Path, default=Path("scaling"), help="default: scaling")
    parser.add_argument("--one-head", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_head:
        print(one_head(int(options.one_head[0]), options.one_head[1]))
        return
    options.output.mkdir(parents=True, exist_ok=True)
    kept = options.output / "scaling.json"
    found: dict[str, dict[str, list[tuple[float, float]]]] = json.loads(kept.read_text()) if kept.is_file() else {}
    for name in options.part:
        found[name] = {}
        with tempfile.TemporaryDirectory() as scratch:
            for size, quantity, value in PARTS[name].points(Path(scratch)):
                found[name].setdefault(quantity, []).append((size, value))
                kept.write_text(json.dumps(found, indent=1))
                print(f"{name:20} {size:8g} {PARTS[name].over:24} {value:10.3f} {quantity}", flush=True)
        for quantity, points in found[name].items():
            print(f"{name:20} slope of {quantity} {slope(points):.2f}; load {os.getloadavg()[0]:.1f}", flush=True)
        draw(found, options.output)


if __name__ == "__main__":
    main()
