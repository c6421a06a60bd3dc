"""``prepare coco`` on a generated file of train2017's size: seconds, memory, and equal bytes of two runs.

``python tests/benchmarks/bench_prepare.py [IMAGES]`` (default 118,000 images, 860,000 boxes with outlines). The file
has 500 MB, as COCO's; annotations of an image are scattered.
"""

import contextlib
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

BOXES_PER_IMAGE = 860 / 118
NUM_CATEGORIES = 80
LIMIT_SECONDS, LIMIT_GB = 40, 3
NUM_RUNS = 2


def write_data(root: Path, num_images: int, seed: int = 0) -> tuple[Path, Path]:
    """Write empty pictures, which only have to be there, and a file that lists them with objects and outlines."""
    rng = np.random.default_rng(seed)
    images = root / "train2017"
    images.mkdir()
    ids = rng.permutation(6 * num_images)[:num_images].tolist()
    sizes = rng.integers(300, 641, size=(num_images, 2)).tolist()
    for key in ids:
        (images / f"{key:012d}.jpg").touch()
    num_boxes = round(num_images * BOXES_PER_IMAGE)
    with (root / "instances_train2017.json").open("w", encoding="utf-8") as file:
        file.write('{"info": {"year": 2017}, "licenses": [{"id": 1, "name": "none"}], "images": [')
        file.write(", ".join(_image(key, size) for key, size in zip(ids, sizes, strict=True)))
        file.write('], "annotations": [')
        where = rng.integers(num_images, size=num_boxes).tolist()
        outlines = [json.dumps(rng.uniform(0, 640, 2 * int(n)).round(2).tolist()) for n in rng.integers(8, 45, 1000)]
        random = rng.random((num_boxes, 5)).tolist()
        for number, (index, part) in enumerate(zip(where, random, strict=True), start=1):
            entry = _annotation(part, number, ids[index], sizes[index], outlines[number % 1000])
            file.write((", " if number > 1 else "") + entry)
        categories = [{"supercategory": "x", "id": i, "name": f"thing {i}"} for i in range(1, NUM_CATEGORIES + 1)]
        file.write(f'], "categories": {json.dumps(categories)}}}')
    return root / "instances_train2017.json", images


def run(annotations: Path, images: Path, output: Path) -> tuple[float, float]:
    """Prepare in a process of its own; return seconds and the largest resident memory, GB."""
    command = [sys.executable, "-m", "coordexp", "prepare", "coco", "--annotations", annotations, "--images", images]
    started = time.perf_counter()
    process = subprocess.Popen([*map(str, command), "--output", str(output)])
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            peak = max(peak, psutil.Process(process.pid).memory_info().rss)
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"prepare ended with {process.returncode}")
    return time.perf_counter() - started, peak / 1e9


def main(num_images: int) -> None:
    """Print seconds, memory and whether the bytes are equal."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        annotations, images = write_data(root, num_images)
        print(f"{num_images:,} images, {annotations.stat().st_size / 1e6:,.0f} MB of annotations")
        hashes = set()
        for number in range(NUM_RUNS):
            output = root / f"prepared-{number}"
            seconds, gigabytes = run(annotations, images, output)
            files = sorted(output.iterdir())
            hashes.add(tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in files))
            print(f"{seconds:6.1f} s  {gigabytes:5.2f} GB  {[path.name for path in files]}")
        print(f"limits at 118,000 images: {LIMIT_SECONDS} s, {LIMIT_GB} GB; equal bytes: {len(hashes) == 1}")


def _image(key: int, size: list[int]) -> str:
    name = f"{key:012d}.jpg"
    url = f"http://images.cocodataset.org/train2017/{name}"
    return json.dumps(
        {"license": 1, "file_name": name, "coco_url": url, "height": size[1], "width": size[0],
         "date_captured": "2013-11-14 11:18:45", "flickr_url": f"http://farm4.staticflickr.com/{key}_z.jpg",
         "id": key}
    )  # fmt: skip


def _annotation(part: list[float], number: int, image_id: int, size: list[int], outline: str) -> str:
    w, h = (max(2.0, round(side * share**2, 2)) for side, share in zip(size, part[:2], strict=True))
    x, y = (round((side - length) * share, 2) for side, length, share in zip(size, (w, h), part[2:4], strict=True))
    category = int(NUM_CATEGORIES * part[4] ** 2) + 1
    return (
        f'{{"segmentation": [{outline}], "area": {w * h * 0.6:.4f}, "iscrowd": {int(number % 85 == 0)}, '
        f'"image_id": {image_id}, "bbox": [{x}, {y}, {w}, {h}], "category_id": {category}, "id": {number}}}'
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 118_000)
