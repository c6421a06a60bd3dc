"""Draws the pictures of ``experiments/coco_tiny.yaml`` and writes them as COCO does: outlines, crowds, ids with gaps.

python examples/coco_tiny/draw.py [FOLDER]

They are drawn, not photographed: a sky, a textured ground, objects with light and shadow, from a cup to a bus, alone,
behind each other and in flocks. Nothing was taken from another data set but names and ids of COCO's categories.
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

CATEGORIES = {1: "person", 3: "car", 6: "bus", 13: "stop sign", 16: "bird", 20: "sheep", 37: "sports ball", 47: "cup"}
SIZES_PX = ((320, 240), (240, 320), (288, 216), (256, 256), (213, 320))
NUM_IMAGES = {"train": 24, "val": 8}
SHEEP = 20
# Outlines in a unit square, y downwards.
OUTLINES = {
    1: [
        (0.5, 0), (0.65, 0.12), (0.58, 0.24), (0.95, 0.34), (0.8, 0.6), (0.75, 1),
        (0.25, 1), (0.2, 0.6), (0.05, 0.34), (0.42, 0.24), (0.35, 0.12),
    ],
    3: [
        (0, 0.55), (0.2, 0.5), (0.32, 0.1), (0.75, 0.1), (0.88, 0.5), (1, 0.6),
        (1, 0.9), (0.85, 1), (0.15, 1), (0, 0.9),
    ],
    6: [(0.03, 0), (0.97, 0), (1, 0.1), (1, 0.9), (0.9, 1), (0.1, 1), (0, 0.9), (0, 0.1)],
    13: [(0.3, 0), (0.7, 0), (1, 0.3), (1, 0.7), (0.7, 1), (0.3, 1), (0, 0.7), (0, 0.3)],
    16: [(0, 0.3), (0.3, 0.35), (0.5, 0), (0.6, 0.4), (1, 0.45), (0.75, 0.7), (0.4, 1), (0.3, 0.65)],
    20: [
        (0, 0.3), (0.2, 0.15), (0.3, 0.25), (0.55, 0.1), (0.9, 0.2), (1, 0.5),
        (0.9, 0.75), (0.85, 1), (0.35, 1), (0.3, 0.7), (0.1, 0.55),
    ],
    37: [(0.5 + 0.5 * np.cos(a), 0.5 + 0.5 * np.sin(a)) for a in np.arange(16) * np.pi / 8],
    47: [(0, 0), (0.8, 0), (0.8, 0.2), (1, 0.25), (1, 0.7), (0.78, 0.75), (0.7, 1), (0.1, 1)],
}  # fmt: skip
COLOURS = {
    1: (150, 90, 80), 3: (160, 40, 45), 6: (205, 160, 40), 13: (190, 25, 30),
    16: (60, 60, 70), 20: (225, 220, 205), 37: (230, 120, 40), 47: (90, 130, 190),
}  # fmt: skip
HEIGHTS = {
    1: (0.2, 0.5),
    3: (0.1, 0.3),
    6: (0.25, 0.5),
    13: (0.1, 0.3),
    16: (0.04, 0.12),
    20: (0.1, 0.25),
    37: (0.05, 0.15),
    47: (0.08, 0.2),
}
ASPECTS = {1: 0.4, 3: 2.1, 6: 2.0, 13: 1.0, 16: 1.3, 20: 1.4, 37: 1.0, 47: 0.9}  # fmt: skip


def draw(folder: Path, *, seed: int = 0) -> None:
    """Write ``annotations/instances_{train,val}.json`` and ``images/{train,val}/*.jpg``."""
    for part, (split, count) in enumerate(NUM_IMAGES.items()):
        images: list[dict[str, object]] = []
        annotations: list[dict[str, object]] = []
        (folder / "images" / split).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            rng = np.random.default_rng([seed, part, number])
            image_id = int(rng.integers(100, 580_000))
            name = f"{image_id:012d}.jpg"
            picture, found = _scene(rng, with_flock=number % 6 == 0)
            picture.save(folder / "images" / split / name, quality=80)
            images.append({"id": image_id, "file_name": name, "width": picture.width, "height": picture.height})
            for entry in found:
                annotations.append({"id": 10_000 * (part + 1) + len(annotations), "image_id": image_id} | entry)
        categories = [{"id": key, "name": text} for key, text in CATEGORIES.items()]
        content = {"images": images, "annotations": annotations, "categories": categories}
        path = folder / "annotations" / f"instances_{split}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content) + "\n", encoding="utf-8")


def _scene(rng: np.random.Generator, *, with_flock: bool) -> tuple[Image.Image, list[dict[str, object]]]:
    width, height = SIZES_PX[rng.integers(len(SIZES_PX))]
    picture = _background(rng, width, height)
    found: list[dict[str, object]] = []
    if with_flock:
        found.append(_flock(rng, picture))
    for category in rng.choice([*CATEGORIES], size=int(rng.integers(1, 7))).tolist():
        tall = height * rng.uniform(*HEIGHTS[category])
        wide = min(tall * ASPECTS[category] * rng.uniform(0.85, 1.15), 0.9 * width)
        x, y = rng.uniform(0, width - wide), rng.uniform(0.1 * height, height - tall)
        found.append(_object(rng, picture, category, (x, y, wide, tall)))
    return picture.filter(ImageFilter.GaussianBlur(0.6)), found


def _background(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Return a sky over a ground, both with the large and small irregularities of real ones."""
    sky, ground = rng.uniform((110, 150, 190), (170, 200, 240)), rng.uniform((60, 80, 40), (150, 140, 110))
    horizon = rng.uniform(0.3, 0.6)
    down = np.linspace(0, 1, height)[:, None, None]
    pixels = np.where(down < horizon, sky + 60 * down, ground * (0.7 + 0.5 * down))
    for cell in (4, 16, 64):
        noise = rng.normal(0, 1, (height // cell + 2, width // cell + 2)).astype(np.float32)
        layer = np.asarray(Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC))
        pixels = pixels + np.where(down < horizon, 4, 9) * layer[:, :, None]
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def _object(
    rng: np.random.Generator, picture: Image.Image, category: int, box: tuple[float, float, float, float]
) -> dict[str, object]:
    x, y, wide, tall = box
    outline = [(round(x + u * wide, 2), round(y + v * tall, 2)) for u, v in OUTLINES[category]]
    colour = np.array(COLOURS[category]) + rng.uniform(-25, 25, 3)
    shadow = Image.new("L", picture.size)
    ImageDraw.Draw(shadow).ellipse((x, y + 0.93 * tall, x + 1.1 * wide, y + 1.07 * tall), fill=110)
    picture.paste((25, 25, 25), mask=shadow.filter(ImageFilter.GaussianBlur(2)))
    mask = Image.new("L", picture.size)
    ImageDraw.Draw(mask).polygon(outline, fill=255)
    across = np.linspace(1.2, 0.7, picture.width)[None, :, None] * np.linspace(1.1, 0.9, picture.height)[:, None, None]
    lit = colour * across + rng.normal(0, 7, (picture.height, picture.width, 1))
    picture.paste(Image.fromarray(lit.clip(0, 255).astype(np.uint8)), mask=mask)
    xs, ys = np.array(outline).T
    area = abs(float(np.dot(xs, np.roll(ys, -1)) - np.dot(ys, np.roll(xs, -1)))) / 2
    return {
        "category_id": category,
        "bbox": [round(float(v), 2) for v in (xs.min(), ys.min(), np.ptp(xs), np.ptp(ys))],
        "area": round(area, 2),
        "segmentation": [[value for point in outline for value in point]],
        "iscrowd": 0,
    }


def _flock(rng: np.random.Generator, picture: Image.Image) -> dict[str, object]:
    """Draw many small sheep and return them as one crowd, its outline as COCO's runs of pixels, column by column."""
    width, height = picture.size
    inside = np.zeros((height, width), bool)
    left, top = rng.uniform(0, 0.4) * width, rng.uniform(0.4, 0.6) * height
    for _ in range(14):
        x, y = left + rng.uniform(0, 0.45) * width, top + rng.uniform(0, 0.2) * height
        box = (x, y, 0.07 * width, 0.05 * height)
        _object(rng, picture, SHEEP, box)
        inside[int(y) : int(y + box[3]), int(x) : int(x + box[2])] = True
    rows, columns = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
    flat = np.concatenate([[False], inside.T.reshape(-1), [False]])
    ends = np.concatenate([[0], np.flatnonzero(flat[1:] != flat[:-1]), [inside.size]])
    return {
        "category_id": SHEEP,
        "bbox": [int(columns[0]), int(rows[0]), int(np.ptp(columns)) + 1, int(np.ptp(rows)) + 1],
        "area": int(inside.sum()),
        "segmentation": {"size": [height, width], "counts": np.diff(ends).tolist()},
        "iscrowd": 1,
    }


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
