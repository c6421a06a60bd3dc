"""Images a second of our path and of the Hugging Face processor's, batch fill, and prepare speed.

``python tests/benchmarks/bench_data.py [--images N] [--repeats N] [--workers N] [--prepare N]``

Default: 64 JPEGs of 640 x 480 px, 5 repeats, 2 loader processes, 6,000 images for ``prepare``; about a minute on two
cores. Exit code 1 if a target is missed: 3 times the images a second of the Hugging Face path, batches 97 % full.

Images: the same files on both sides, CPU seconds of one thread, best of the interleaved repeats. *Ours* is what a
loader process does: decode, check against the annotation, resize, cut into uint8 patches. *Hugging Face* is decode and
``Qwen2VLImageProcessorPil``, which gives normalised float32. Ours is normalised on the device that trains; the line
"and normalised on this CPU" does that here as well, and is bit-equal to the other side (checked at each start). The
line of loader processes is wall time, on whatever else the machine does.

Fill: tokens over padded cells of COCO-like samples (longer side 640 px, 7.3 objects on average, at most 30) at the
pixel limits of the Qwen3-VL processor and of ``experiments/coco_qwen3vl_4b.yaml``, for one process and for 8 ranks
with 2 microbatches of 8. *A microbatch* is what a device pads to; *a step* also counts ranks waiting for the longest
row of all. A packed row has no padding; with attention that does not know the samples' borders its cost grows with
the square of its length, so packing is for very unequal lengths, not for bucketed ones.

Prepare: ``python -m coordexp prepare coco`` on a generated file, as ``bench_prepare.py`` at small size.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import numpy as np
import torch
from bench_prepare import write_data
from coco_lengths import coco_lengths
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, Dataset
from transformers import Qwen2VLImageProcessorPil

from coordexp.data.image_file import read_image
from coordexp.data.patches import ImageSpec, pixel_values, to_patches
from coordexp.data.sampler import LengthBucketSampler

WIDTH, HEIGHT = 640, 480
LIMITS = {"Qwen3-VL's own": 16_777_216, "coco_qwen3vl_4b.yaml": 409_600}
LAYOUTS = {"1 x 16": (16, 16), "8 ranks x 2 x 8": (8, 128)}
SPEED_TARGET, FILL_TARGET = 3.0, 0.97
MIB = 2**20
console = Console(width=110)


@dataclass(frozen=True)
class Found:
    """Seconds and bytes of one image on one path."""

    seconds: float
    num_bytes: int


class Patches(Dataset[torch.Tensor]):
    """Our path as a data set, to be read by loader processes."""

    def __init__(self, files: Sequence[Path], spec: ImageSpec) -> None:
        self._files, self._spec = files, spec

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(ours(self._files[index], self._spec))


def write_images(folder: Path, num: int) -> list[Path]:
    """Write photograph-like JPEGs: smooth shapes with grain, about 100 kB each."""
    rng = np.random.default_rng(0)
    files = [folder / f"{number:06d}.jpg" for number in range(num)]
    for file in files:
        coarse = Image.fromarray(rng.integers(0, 256, (15, 20, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)).astype(np.int16)
        grain = rng.integers(-12, 13, (HEIGHT, WIDTH, 1), dtype=np.int16)
        Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(file, quality=90)
    return files


def qwen3_vl() -> Qwen2VLImageProcessorPil:
    """The image processor of Qwen3-VL, as transformers has it without torchvision."""
    size = {"shortest_edge": 65_536, "longest_edge": LIMITS["Qwen3-VL's own"]}
    return Qwen2VLImageProcessorPil(image_mean=[0.5] * 3, image_std=[0.5] * 3, patch_size=16, merge_size=2, size=size)


def ours(file: Path, spec: ImageSpec) -> np.ndarray:
    """What a loader process does with one file."""
    return to_patches(read_image(file, width=WIDTH, height=HEIGHT), spec)[0]


def theirs(file: Path, processor: Qwen2VLImageProcessorPil) -> torch.Tensor:
    """The Hugging Face path."""
    with Image.open(file) as picture:
        return processor(images=[picture.convert("RGB")], return_tensors="pt")["pixel_values"]


def time_paths(files: Sequence[Path], repeats: int) -> dict[str, Found]:
    """Time each path over all files, interleaved, best of the repeats."""
    processor = qwen3_vl()
    spec = ImageSpec.from_processor(processor)

    def on_this_cpu(file: Path) -> torch.Tensor:
        return pixel_values(torch.from_numpy(ours(file, spec)), spec)

    if not torch.equal(on_this_cpu(files[0]), theirs(files[0], processor)):
        raise SystemExit("our pixel values are not those of the Hugging Face processor")
    paths: dict[str, Callable[[Path], np.ndarray | torch.Tensor]] = {
        "decode alone": lambda file: np.asarray(read_image(file)),
        "Hugging Face processor": lambda file: theirs(file, processor),
        "ours: uint8 patches": lambda file: ours(file, spec),
        "ours, and normalised on this CPU": on_this_cpu,
    }
    best = dict.fromkeys(paths, float("inf"))
    num_bytes: dict[str, int] = {}
    for _ in range(repeats):
        for name, path in paths.items():
            started = time.process_time()
            for file in files:
                made = path(file)
            best[name] = min(best[name], (time.process_time() - started) / len(files))
            num_bytes[name] = made.nbytes
    return {name: Found(best[name], num_bytes[name]) for name in paths}


def loader_seconds(files: Sequence[Path], workers: int) -> float:
    """Seconds an image through loader processes, best of four epochs."""
    many = list(files) * 2
    loader = DataLoader(
        Patches(many, ImageSpec.from_processor(qwen3_vl())),
        batch_size=8,
        collate_fn=torch.cat,
        num_workers=workers,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    best = float("inf")
    for _ in range(4):  # in the first one the processes start
        started = time.perf_counter()
        num = sum(1 for _ in loader)
        best = min(best, (time.perf_counter() - started) / (8 * num))
    return best


def image_table(files: Sequence[Path], repeats: int, workers: int) -> tuple[Table, float]:
    """Return the table of image paths, and ours over Hugging Face's."""
    found = time_paths(files, repeats)
    reference = found["Hugging Face processor"]
    table = Table(
        title=f"one image of {WIDTH} x {HEIGHT} px, JPEG ({len(files)} files, one thread)", title_justify="left"
    )
    for heading in ("path", "ms", "images/s", "ratio", "MiB", "ratio"):
        table.add_column(heading, justify="left" if heading == "path" else "right")
    for name, one in found.items():
        table.add_row(
            name,
            f"{1e3 * one.seconds:.2f}",
            f"{1 / one.seconds:,.0f}",
            f"{reference.seconds / one.seconds:.2f}",
            f"{one.num_bytes / MIB:.2f}",
            f"{one.num_bytes / reference.num_bytes:.3f}",
        )
    seconds = loader_seconds(files, workers)
    ratio = f"{reference.seconds / seconds:.2f}"
    table.add_row(f"ours, {workers} loader processes", f"{1e3 * seconds:.2f}", f"{1 / seconds:,.0f}", ratio, "", "")
    return table, reference.seconds / found["ours: uint8 patches"].seconds


def fill_table() -> tuple[Table, float]:
    """Return the table of batch fill, and the lowest fill of a bucketed batch."""
    table = Table(title="batch fill on 20,000 COCO-like samples: microbatch / step", title_justify="left")
    for heading in ("pixel limit", "batch", "random", "bucketed", "packed", "tokens a microbatch"):
        table.add_column(heading, justify="left" if heading in ("pixel limit", "batch") else "right")
    lowest = 1.0
    for limit, max_pixels in LIMITS.items():
        lengths = coco_lengths(20_000, max_pixels=max_pixels)
        for layout, (size, global_batch_size) in LAYOUTS.items():
            fills: list[tuple[float, float]] = []
            for buckets in (False, True):
                sampler = LengthBucketSampler(lengths, batch_size=global_batch_size, seed=0, buckets=buckets)
                fills.append((sampler.fill(size), sampler.fill(global_batch_size)))
            lowest = min(lowest, *fills[1])
            random, bucketed = (f"{micro:.1%} / {step:.1%}" for micro, step in fills)
            table.add_row(limit, layout, random, bucketed, "100 %", f"{size * np.mean(lengths):,.0f}")
    return table, lowest


def prepare_line(num_images: int) -> str:
    """Return the speed of ``prepare coco`` in a process of its own, imports included."""
    with tempfile.TemporaryDirectory() as scratch:
        annotations, images = write_data(Path(scratch), num_images)
        command = ["-m", "coordexp", "prepare", "coco", "--annotations", annotations, "--images", images]
        started = time.perf_counter()
        output = Path(scratch) / "prepared"
        subprocess.run([sys.executable, *map(str, command), "--output", str(output)], check=True, capture_output=True)
        seconds = time.perf_counter() - started
    return f"prepare coco: {num_images:,} images in {seconds:.1f} s, {num_images / seconds:,.0f} a second"


def main() -> int:
    """Print two tables and a line; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--prepare", type=int, default=6_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        table, speed = image_table(write_images(Path(folder), options.images), options.repeats, options.workers)
    console.print(table)
    fills, lowest = fill_table()
    console.print(fills)
    console.print(prepare_line(options.prepare))
    console.print(f"ours over Hugging Face: {speed:.1f} times the images a second (target {SPEED_TARGET:g})")
    console.print(f"lowest bucketed fill: {lowest:.1%} (target {FILL_TARGET:.0%})")
    return int(speed < SPEED_TARGET or lowest < FILL_TARGET)


if __name__ == "__main__":
    sys.exit(main())
