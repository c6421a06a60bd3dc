"""Some pictures of a split, and the COCO file that holds them alone (``evaluation.max_images``, a tuning split)."""

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from coordexp.data.coco.json_text import read_without_outlines
from coordexp.data.sample import Samples
from coordexp.data.split_data import SplitData
from coordexp.files import JsonValue, sha256_of_text, write_json

CHOSEN_NAME = "val_chosen.json"
CHOSEN_BY = "(evaluation.max_images)"
"""The end of the note on a choice, by which the note is found again."""


def chosen_sentence(annotations: Path) -> str:
    """Return the sentence on how many images were chosen for a ground truth; "" for a ground truth of all images."""
    if annotations.name != CHOSEN_NAME:
        return ""
    return json.loads(annotations.read_bytes())["info"]["description"]


def chosen_part(data: SplitData, num_images: int, *, seed: int) -> SplitData:
    """Return ``num_images`` of a split's samples, in its order; all of them if there are no more.

    Image ids and the seed decide alone: the order of the file does not matter, and a smaller part lies in a larger one.
    """
    samples = data.samples
    if len(samples) <= num_images:
        return data
    # Samples make an object for each access: their ids are read from the array.
    image_ids = samples.image_ids.tolist() if isinstance(samples, Samples) else [sample.image_id for sample in samples]
    ranked = sorted(range(len(samples)), key=lambda index: (sha256_of_text(f"{seed}/{image_ids[index]}"), index))
    chosen_samples = Samples.of(samples[index] for index in sorted(ranked[:num_images]))
    counts = data.counts | {
        "boxes": len(chosen_samples.boxes_norm_xyxy),
        "images_without_objects": sum(not len(sample.objects) for sample in chosen_samples),
        "not_chosen": len(samples) - len(chosen_samples),
    }
    return replace(data, samples=chosen_samples, counts=counts)


def chosen_for_evaluation(data: SplitData, num_images: int, *, seed: int) -> SplitData:
    """Return the validation images that AP is measured on, with a note that says so; all of them if there are no more.

    The choice is that of :func:`chosen_part`; images that were not chosen are no loss, and are not counted.
    """
    chosen_data = chosen_part(data, num_images, seed=seed)
    if chosen_data is data:
        return data
    counts = {name: count for name, count in chosen_data.counts.items() if name != "not_chosen"}
    sentence = f"AP is on {len(chosen_data.samples):,} of {len(data.samples):,} images, chosen by chance {CHOSEN_BY}"
    return replace(chosen_data, counts=counts, notes=(sentence, *chosen_data.notes))


def write_chosen(path: Path, whole: Path, data: SplitData) -> None:
    """Write the ground truth of the images of :func:`chosen_for_evaluation`.

    Args:
        path: the file to write.
        whole: the ground truth of all images.
        data: the chosen images.
    """
    content = cast("dict[str, JsonValue]", read_without_outlines(whole))
    descriptions = [note for note in data.notes if note.endswith(CHOSEN_BY)]
    info: dict[str, JsonValue] = {"description": descriptions[0] if descriptions else ""}
    write_part(path, {**content, "info": info}, {sample.image_id for sample in data.samples})


def write_part(path: Path, content: Mapping[str, JsonValue], image_ids: Collection[int]) -> None:
    """Write the images of some ids with all their annotations, and everything else that a COCO file holds."""
    chosen_content = {
        "images": [row for row in _rows(content, "images") if row.get("id") in image_ids],
        "annotations": [row for row in _rows(content, "annotations") if row.get("image_id") in image_ids],
    }
    write_json(path, {**content, **chosen_content})


def _rows(content: Mapping[str, JsonValue], section: str) -> list[dict[str, JsonValue]]:
    rows = content.get(section)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
