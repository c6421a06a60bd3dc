"""Some pictures of a validation split, in any format (``evaluation.max_images``)."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias, cast

from coordexp.data.sample import Generated, Samples, SplitData
from coordexp.data.sources.coco import CocoSource
from coordexp.data.sources.coco_file import read_without_outlines
from coordexp.data.sources.jsonl import JsonlSource
from coordexp.files import JsonValue, sha256_of_text, write_json

CHOSEN_NAME = "val_chosen.json"
_KEY = "(evaluation.max_images)"
Whole: TypeAlias = CocoSource | JsonlSource


@dataclass(frozen=True)
class ChosenSource:
    """Some pictures of a validation split; AP is measured on a COCO file that holds them alone."""

    whole: Whole
    num_images: int
    seed: int
    ground_truth_file: Path
    name: str
    annotations: Path
    images: Path
    generated: Generated | None

    @classmethod
    def of(cls, whole: Whole, num_images: int, *, seed: int, folder: Path) -> "ChosenSource":
        own = whole.name, whole.annotations, whole.images, whole.generated
        return cls(whole, num_images, seed, folder / CHOSEN_NAME, *own)

    @property
    def given_images(self) -> Path:
        return self.whole.given_images

    def read(self, *, max_bad_fraction: float, accept_prequantised: bool) -> SplitData:
        data = self.whole.read(max_bad_fraction=max_bad_fraction, accept_prequantised=accept_prequantised)
        part = chosen_part(data, self.num_images, seed=self.seed)
        if part is data:
            return data
        counts = {name: count for name, count in part.counts.items() if name != "not_chosen"}
        said = f"AP is on {len(part.samples):,} of {len(data.samples):,} images, chosen by chance {_KEY}"
        return replace(part, counts=counts, notes=(said, *part.notes))

    def ground_truth(self) -> Path:
        whole = self.whole.ground_truth()
        stat = whole.stat()
        return _ground_truth(self, whole, stat.st_mtime_ns, stat.st_size)

    def count_images(self) -> int:
        return min(self.num_images, self.whole.count_images())


@lru_cache(maxsize=8)
def _ground_truth(source: ChosenSource, whole: Path, *stamp: int) -> Path:
    """Write it once in a process; the stamp is that of the whole ground truth."""
    del stamp
    data = source.read(max_bad_fraction=1.0, accept_prequantised=True)  # what is refused was refused before
    content = cast(dict[str, JsonValue], read_without_outlines(whole))
    content["info"] = {"description": next((note for note in data.notes if note.endswith(_KEY)), "")}
    write_part(source.ground_truth_file, content, {sample.image_id for sample in data.samples})
    return source.ground_truth_file


def chosen_sentence(annotations: Path) -> str:
    """Return the sentence on how many images were chosen for a ground truth; "" for one of all images."""
    if annotations.name != CHOSEN_NAME:
        return ""
    return json.loads(annotations.read_bytes())["info"]["description"]


def chosen_part(data: SplitData, num_images: int, *, seed: int) -> SplitData:
    """Return ``num_images`` of a split's samples, in its order; all of them if there are no more.

    By image id and seed alone: the order of the file does not matter, and a smaller part lies in a larger one.
    """
    samples = data.samples
    if len(samples) <= num_images:
        return data
    image_ids = samples.image_ids.tolist() if isinstance(samples, Samples) else [one.image_id for one in samples]
    ranked = sorted(range(len(samples)), key=lambda at: (sha256_of_text(f"{seed}/{image_ids[at]}"), at))
    part = Samples.of(samples[at] for at in sorted(ranked[:num_images]))
    counts = data.counts | {
        "boxes": len(part.boxes_norm_xyxy),
        "images_without_objects": sum(not len(one.objects) for one in part),
        "not_chosen": len(samples) - len(part),
    }
    return replace(data, samples=part, counts=counts)


def write_part(path: Path, content: Mapping[str, JsonValue], image_ids: Collection[int]) -> None:
    """Write the images of some ids with all their annotations, and whatever else a COCO file says."""
    part = {
        "images": [row for row in _rows(content, "images") if row.get("id") in image_ids],
        "annotations": [row for row in _rows(content, "annotations") if row.get("image_id") in image_ids],
    }
    write_json(path, {**content, **part})


def _rows(content: Mapping[str, JsonValue], section: str) -> list[dict[str, JsonValue]]:
    rows = content.get(section)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
