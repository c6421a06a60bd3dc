"""Paired detections of a made-up world, for asking how often the statistics are right.

Objects and images have a difficulty that all checkpoints share; each checkpoint adds its own luck to whether an object
is found, how far its box is off, and how sure it is. False positives are commoner in difficult images. ``effect``
widens a checkpoint's box errors, nothing else: 0 is no effect at all.

There are two kinds of images: those with a few objects of three equally common categories, and those like COCO's, with
some categories of many, each with a few objects, a few categories common and most of them rare.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SIZE_PX = 400.0
NUM_CATEGORIES = 3


@dataclass(frozen=True)
class World:
    """Objects as arrays ``[G]``, images as arrays ``[N]``, ``[K]`` how common categories are; None: all alike."""

    image: np.ndarray
    category: np.ndarray
    boxes: np.ndarray
    difficulty: np.ndarray
    shared_shift: np.ndarray
    image_difficulty: np.ndarray
    num_categories: int = NUM_CATEGORIES
    frequency: np.ndarray | None = None


def make_world(rng: np.random.Generator, num_images: int) -> World:
    image = np.repeat(np.arange(num_images), 1 + rng.poisson(2.5, num_images))
    num = len(image)
    image_difficulty = rng.normal(0, 1, num_images)
    side = np.exp(rng.uniform(np.log(15), np.log(200), (num, 2)))
    corner = rng.uniform(0, 1, (num, 2)) * (SIZE_PX - side)
    return World(
        image=image,
        category=rng.integers(0, NUM_CATEGORIES, num),
        boxes=np.hstack([corner, side]),
        difficulty=0.7 * image_difficulty[image] + rng.normal(0, 1, num),
        shared_shift=rng.normal(0, 1, (num, 4)),
        image_difficulty=image_difficulty,
    )


def make_crowded_world(rng: np.random.Generator, num_images: int, num_categories: int) -> World:
    """Return images with 1 to 8 of many categories and 6 objects on average; how hard a category is never changes."""
    frequency = np.arange(1, num_categories + 1) ** -0.9
    frequency /= frequency.sum()
    there = np.repeat(np.arange(num_images), 1 + rng.poisson(1.9, num_images))
    category = rng.choice(num_categories, len(there), p=frequency)
    objects = rng.geometric(0.45, len(there))
    image, category = np.repeat(there, objects), np.repeat(category, objects)
    image_difficulty = rng.normal(0, 1, num_images)
    hard = np.random.default_rng(5).normal(0, 0.7, num_categories)[category] + 0.6 * image_difficulty[image]
    num = len(image)
    side = np.exp(rng.uniform(np.log(15), np.log(200), (num, 2)))
    return World(
        image=image,
        category=category,
        boxes=np.hstack([rng.uniform(0, 1, (num, 2)) * (SIZE_PX - side), side]),
        difficulty=hard + rng.normal(0, 1, num),
        shared_shift=rng.normal(0, 1, (num, 4)),
        image_difficulty=image_difficulty,
        num_categories=num_categories,
        frequency=frequency,
    )


def detect(rng: np.random.Generator, world: World, *, effect: float = 0.0) -> list[dict]:
    """Return one checkpoint's detections."""
    num, hard = len(world.image), world.difficulty
    found = rng.normal(0, 1, num) < 1.2 - 0.6 * hard
    error = 0.05 * (1 + effect) * np.exp(0.25 * hard)
    shift = error[:, None] * (0.6 * world.shared_shift + 0.8 * rng.normal(0, 1, (num, 4)))
    boxes = world.boxes + shift * np.hstack([world.boxes[:, 2:], world.boxes[:, 2:]])
    boxes[:, 2:] = np.maximum(boxes[:, 2:], 1.0)
    score = 1 / (1 + np.exp(-(1.0 - 0.5 * hard - 8 * (error - 0.05) + rng.normal(0, 0.7, num))))
    false = np.repeat(np.arange(len(world.image_difficulty)), rng.poisson(np.exp(0.4 * world.image_difficulty)))
    false_side = np.exp(rng.uniform(np.log(15), np.log(200), (len(false), 2)))
    false_boxes = np.hstack([rng.uniform(0, 1, (len(false), 2)) * (SIZE_PX - false_side), false_side])
    return _entries(
        np.concatenate([world.image[found], false]),
        np.concatenate([world.category[found], _any_category(rng, world, len(false))]),
        np.concatenate([boxes[found], false_boxes]),
        np.concatenate([score[found], 1 / (1 + np.exp(0.8 - rng.normal(0, 0.8, len(false))))]),
    )


def _any_category(rng: np.random.Generator, world: World, num: int) -> np.ndarray:
    if world.frequency is None:
        return rng.integers(0, world.num_categories, num)
    return rng.choice(world.num_categories, num, p=world.frequency)


def _entries(image, category, boxes, score) -> list[dict]:
    rows = zip(image.tolist(), category.tolist(), boxes.tolist(), score.tolist(), strict=True)
    return [{"image_id": i + 1, "category_id": c + 1, "bbox": b, "score": s} for i, c, b, s in rows]


def write_world(path: Path, world: World) -> Path:
    rows = zip(world.image.tolist(), world.category.tolist(), world.boxes.tolist(), strict=True)
    document = {
        "images": [{"id": i + 1, "width": 400, "height": 400} for i in range(len(world.image_difficulty))],
        "categories": [{"id": c + 1, "name": str(c)} for c in range(world.num_categories)],
        "annotations": [
            {"id": n, "image_id": i + 1, "category_id": c + 1, "bbox": b, "area": b[2] * b[3], "iscrowd": 0}
            for n, (i, c, b) in enumerate(rows, start=1)
        ],
    }
    path.write_text(json.dumps(document))
    return path


def write_experiment(
    folder: Path,
    *,
    number: int,
    num_images: int,
    effects: Mapping[str, float],
    num_seeds: int = 1,
    seed_spread: float = 0.0,
    num_categories: int = NUM_CATEGORIES,
) -> tuple[Path, dict[str, dict[int, Path]]]:
    """Write experiment ``number`` of the world and return annotations and group -> seed -> detections.

    Args:
        folder: for the files; those of the last experiment are replaced.
        number: seed of all that is random in it.
        num_images: images.
        effects: group -> effect.
        num_seeds: checkpoints of each group.
        seed_spread: std of a further effect, drawn for each checkpoint.
        num_categories: more than three give images like COCO's.
    """
    rng = np.random.default_rng([number, num_images])
    crowded = num_categories > NUM_CATEGORIES
    world = make_crowded_world(rng, num_images, num_categories) if crowded else make_world(rng, num_images)
    files: dict[str, dict[int, Path]] = {group: {} for group in effects}
    for seed in range(num_seeds):
        for group, effect in effects.items():
            path = folder / f"{group}-{seed}.json"
            luck = float(rng.normal(0, seed_spread)) if seed_spread else 0.0
            path.write_text(json.dumps(detect(rng, world, effect=effect + luck)))
            files[group][seed] = path
    return write_world(folder / "instances.json", world), files


def write_unit_experiment(
    folder: Path, *, number: int, num_frames: Sequence[int], names: Sequence[str] = ("A", "B")
) -> tuple[Path, dict[str, dict[int, Path]]]:
    """Write an experiment whose images are the frames of clips, and return its files as :func:`write_experiment` does.

    A clip shows the same objects in all of its frames, each a little elsewhere. What a method does wrong is drawn once
    a clip, for each method by itself: which objects it finds, how far off their boxes are, how sure it is, and which
    boxes have no object. So two methods do not differ, and the frames of a clip say the same thing again and again.

    ``num_frames`` are those of each clip; every image has its ``clip``.
    """
    rng = np.random.default_rng([number, len(num_frames), 21])
    clips = make_world(rng, len(num_frames))
    clip_of_frame = np.repeat(np.arange(len(num_frames)), num_frames)
    moves = rng.uniform(-15, 15, (len(clip_of_frame), 2))
    frames = range(1, len(clip_of_frame) + 1)

    def in_frames(entries: Sequence[dict]) -> list[dict]:
        """Repeat what is in a clip in each of its frames, moved as the frame is."""
        in_clip: dict[int, list[dict]] = {}
        for entry in entries:
            in_clip.setdefault(entry["image_id"] - 1, []).append(entry)
        repeated = []
        for frame, clip, (dx, dy) in zip(frames, clip_of_frame.tolist(), moves.tolist(), strict=True):
            for entry in in_clip.get(clip, []):
                x, y, width, height = entry["bbox"]
                repeated.append(entry | {"image_id": frame, "bbox": [x + dx, y + dy, width, height]})
        return repeated

    truth = [
        {"image_id": image + 1, "category_id": category + 1, "bbox": box}
        for image, category, box in zip(
            clips.image.tolist(), clips.category.tolist(), clips.boxes.tolist(), strict=True
        )
    ]
    annotations = [
        entry | {"id": n, "area": entry["bbox"][2] * entry["bbox"][3], "iscrowd": 0}
        for n, entry in enumerate(in_frames(truth), start=1)
    ]
    document = {
        "images": [
            {"id": frame, "file_name": f"clip{clip:03d}_{frame:05d}.jpg", "width": 400, "height": 400, "clip": clip}
            for frame, clip in zip(frames, clip_of_frame.tolist(), strict=True)
        ],
        "categories": [{"id": c + 1, "name": str(c)} for c in range(clips.num_categories)],
        "annotations": annotations,
    }
    path = folder / "instances.json"
    path.write_text(json.dumps(document))
    files: dict[str, dict[int, Path]] = {}
    for name in names:
        found = in_frames(detect(rng, clips))
        jitter = rng.uniform(0, 1e-6, len(found))  # or the order of equal scores would decide
        for entry, more in zip(found, jitter.tolist(), strict=True):
            entry["score"] += more
        file = folder / f"{name}.json"
        file.write_text(json.dumps(found))
        files[name] = {0: file}
    return path, files
