"""What a folder was found to hold."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from coordexp.data.reading import Reading
from coordexp.data.sample import Split
from coordexp.data.sources.coco.source import CocoSource
from coordexp.data.sources.jsonl.source import JsonlSource, ground_truth_name
from coordexp.data.splits.originals import Part

HUGGING_FACE = "imagefolder of Hugging Face"
Source: TypeAlias = CocoSource | JsonlSource
"""One split in one format; a new format is one file beside this one, and what finds it here."""
MakeSource: TypeAlias = Callable[[Path, Reading, Part | None], Source]


@dataclass(frozen=True)
class Found:
    """What a folder holds."""

    kind: str
    where: Path  # the folder, or the one below it, that holds it
    splits: Mapping[Split, MakeSource]  # what makes the source of each; val is missing if the data has no split
    by: str  # what tells the splits; "" where nothing does

    def source(self, split: Split, *, data_dir: Path, reading: Reading, fraction: float, seed: int) -> Source:
        is_split = "val" in self.splits
        part = None if is_split else Part(split == "val", fraction, seed)
        source = self.splits[split if is_split else "train"](data_dir / ground_truth_name(split), reading, part)
        return replace(source, split=split) if isinstance(source, JsonlSource) else source

    def sentence(self, folder: Path, fraction: float) -> str:
        below = "" if self.where == folder else f" in {self.where.relative_to(folder)}"
        if "val" in self.splits:
            return f"{self.kind}{below}; split by {self.by}"
        share = f"{fraction:.0%} of its pictures are for validation, chosen by data.split_seed"
        return f"{self.kind}{below}; not split: {share}"


def folders_in(folder: Path) -> list[Path]:
    return sorted(place for place in folder.iterdir() if place.is_dir() and not place.name.startswith("."))
