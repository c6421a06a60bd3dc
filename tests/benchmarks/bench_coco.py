"""Reading a COCO file against the floor, ``json.load`` of the same file: images with 7 boxes and a 60-point outline.

``python tests/benchmarks/bench_coco.py [IMAGES]`` (default 11,800, a tenth of train2017).
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from coordexp.data.sources.coco import read_coco

BOXES_PER_IMAGE = 7


def write_data(root: Path, num_images: int) -> tuple[Path, Path]:
    """Write empty pictures, which only have to be there, and a file that lists them."""
    images = root / "images"
    images.mkdir()
    for i in range(num_images):
        (images / f"{i:012d}.jpg").touch()
    outline = [[round(0.37 * i, 2) for i in range(60)]]
    box = {"category_id": 1, "bbox": [7.5, 7.25, 30.5, 20], "segmentation": outline}
    num_boxes = num_images * BOXES_PER_IMAGE
    document = {
        "images": [{"id": i, "file_name": f"{i:012d}.jpg", "width": 640, "height": 480} for i in range(num_images)],
        "annotations": [{"id": i + 1, "image_id": i // BOXES_PER_IMAGE, **box} for i in range(num_boxes)],
        "categories": [{"id": 1, "name": "cat"}],
    }
    (root / "instances.json").write_text(json.dumps(document))
    return root / "instances.json", images


def seconds_of(action: Callable[[], object]) -> float:
    """Return the CPU seconds of one call."""
    started = time.process_time()
    action()
    return time.process_time() - started


def main(num_images: int) -> None:
    """Print both times and their ratio."""
    with tempfile.TemporaryDirectory() as scratch:
        file, images = write_data(Path(scratch), num_images)
        floor = min(seconds_of(lambda: json.loads(file.read_bytes())) for _ in range(3))
        ours = min(seconds_of(lambda: read_coco(file, images)) for _ in range(3))
    print(f"{num_images:,} images, {num_images * BOXES_PER_IMAGE:,} boxes (CPU seconds, best of 3)")
    print(f"json.load   {floor:8.2f}  1.00x")
    print(f"read_coco   {ours:8.2f}  {ours / floor:.2f}x")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 11_800)
