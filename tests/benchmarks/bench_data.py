"""Seconds and memory that reading a data set of COCO's size costs: the first command, later commands, and each rank.

118,000 names on 64 JPEGs (hard links), 860,000 boxes, 5,000 validation images. At most 60 s for the first command with
warm files, hashing the bytes printed beside it, and 2 s and 150 MB for each later run or rank.

    python tests/benchmarks/bench_data.py [--images 118000] [--boxes 860000] [--folder /tmp/somewhere]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from coordexp.config.schema.data import Data
from coordexp.data.sets import fingerprint
from coordexp.data.sources.door import SetPlace, open_set

NUM_PICTURES = 64
SIDE_PX = (640, 480)
NUM_VAL = 5_000
LIMITS = {"first command": 60.0, "rank": 2.0, "rank MB": 150.0}
# What a worker does with the set, in a process of its own, so that its memory is that of a rank.
_RANK = """
import sys, time, psutil
from pathlib import Path
from coordexp.data.sets.data_set import DataSet
before = psutil.Process().memory_full_info().uss
started = time.monotonic()
data_set = DataSet.open(Path(sys.argv[1]))
train, val = data_set.load("train"), data_set.load("val")
seconds = time.monotonic() - started
after = psutil.Process().memory_full_info().uss
print(len(train.samples), len(val.samples), seconds, (after - before) / 2**20)
"""


def write_pictures(folder: Path, names: list[str], pictures: list[Path]) -> None:
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        os.link(pictures[number % len(pictures)], folder / name)


def write_coco(path: Path, names: list[str], *, num_boxes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    width, height = SIDE_PX
    images = [{"id": at, "file_name": name, "width": width, "height": height} for at, name in enumerate(names, start=1)]
    image_ids = rng.integers(1, len(names) + 1, num_boxes).tolist()
    categories = rng.integers(1, 81, num_boxes).tolist()
    sides = rng.integers(8, 200, (num_boxes, 2))
    corners = (rng.random((num_boxes, 2)) * (np.array(SIDE_PX) - sides)).round(2)
    boxes = np.concatenate([corners, sides], axis=1).tolist()
    annotations = [
        {"id": at, "image_id": image_id, "category_id": category, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
        for at, (image_id, category, box) in enumerate(zip(image_ids, categories, boxes, strict=True), start=1)
    ]
    names_of_categories = [{"id": key, "name": f"thing {key}"} for key in range(1, 81)]
    content = {"images": images, "annotations": annotations, "categories": names_of_categories}
    path.write_text(json.dumps(content))


def write_data(folder: Path, *, num_images: int, num_boxes: int) -> Data:
    rng = np.random.default_rng(0)
    pictures: list[Path] = []
    (folder / "pictures").mkdir(parents=True)
    for number in range(NUM_PICTURES):
        path = folder / "pictures" / f"{number:02d}.jpg"
        low = rng.integers(0, 256, (SIDE_PX[1] // 8, SIDE_PX[0] // 8, 3), dtype=np.uint8)
        Image.fromarray(low).resize(SIDE_PX).save(path, quality=90)
        pictures.append(path)
    num_val = min(NUM_VAL, num_images // 10)
    for split, num, boxes in (("train", num_images, num_boxes), ("val", num_val, num_boxes * num_val // num_images)):
        names = [f"{at:012d}.jpg" for at in range(num)]
        write_pictures(folder / split, names, pictures)
        write_coco(folder / f"{split}.json", names, num_boxes=boxes, seed=num)
    places = {f"{split}_annotations": folder / f"{split}.json" for split in ("train", "val")}
    return Data(format="coco", **places, **{f"{split}_images": folder / split for split in ("train", "val")})


def timed(data: Data, place: SetPlace) -> tuple[float, float, Path]:
    """Return the seconds of the door, those of them that hashed bytes, and the folder of the set."""
    hashing = 0.0
    known_hashes = fingerprint.known_hashes

    def measured(*arguments, **keywords):
        nonlocal hashing
        started = time.monotonic()
        found = known_hashes(*arguments, **keywords)
        hashing += time.monotonic() - started
        return found

    fingerprint.known_hashes = measured
    try:
        started = time.monotonic()
        data_set = open_set(data, place)
        return time.monotonic() - started, hashing, data_set.path
    finally:
        fingerprint.known_hashes = known_hashes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=118_000)
    parser.add_argument("--boxes", type=int, default=860_000)
    parser.add_argument("--folder", type=Path, help="where the data are written (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        started = time.monotonic()
        data = write_data(Path(scratch) / "data", num_images=options.images, num_boxes=options.boxes)
        print(f"written: {options.images:,} names, {options.boxes:,} boxes in {time.monotonic() - started:.0f} s")
        runs = Path(scratch) / "runs"
        place = SetPlace(runs / "one" / "data", runs / ".hashes", runs_dir=runs)
        first, hashing, path = timed(data, place)
        again, hashing_again, _ = timed(data, place)
        rank = subprocess.run([sys.executable, "-c", _RANK, path], capture_output=True, check=True, text=True)
        num_train, num_val, seconds, megabytes = rank.stdout.split()
        size = sum(file.stat().st_size for file in path.iterdir()) / 2**20
    measured = {"first command": first - hashing, "rank": float(seconds), "rank MB": float(megabytes)}
    print(f"first command: {first - hashing:.1f} s, and {hashing:.1f} s of hashing; the set has {size:.0f} MB")
    print(f"later command: {again:.1f} s, {hashing_again:.1f} s of it looking whether a file has changed")
    print(f"rank: {num_train} + {num_val} images in {float(seconds):.2f} s, {float(megabytes):.0f} MB")
    over = [name for name, limit in LIMITS.items() if measured[name] > limit]
    print(f"over the limit: {', '.join(over)}" if over else "within the limits")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
