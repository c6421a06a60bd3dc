"""What a folder was found to hold, and how its sources are made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from coordexp.data.reading import Reading
from coordexp.data.sample import Split
from coordexp.data.sources.coco.source import CocoSource
from coordexp.data.sources.jsonl.source import JsonlSource, ground_truth_name
from coordexp.data.splits.part import Part

HUGGING_FACE = "imagefolder of Hugging Face"
Source: TypeAlias = CocoSource | JsonlSource
"""One split in one format. A new format is one file in ``data/sources``, and what finds it in this folder."""
MakeSource: TypeAlias = Callable[[Path, Reading, Part | None], Source]
"""Called with the ground truth that may be made, how annotations are read, and the split's part of the pictures."""


@dataclass(frozen=True)
class FoundSet:
    """The data set that a folder holds.

    Attributes:
        kind: its format, for messages.
        where: the folder, or the one below it, that holds it.
        splits: what makes the source of each split. Without an official split, ``train`` alone makes the source of
            everything.
        by: what tells the splits; "" if nothing does.
    """

    kind: str
    where: Path
    splits: Mapping[Split, MakeSource]
    by: str

    def source(self, split: Split, *, data_dir: Path, reading: Reading, fraction: float, seed: int) -> Source:
        """Return the source of a split.

        Args:
            split: which one.
            data_dir: folder of the experiment's data, for what is made.
            reading: how annotations are read if they do not say it themselves.
            fraction: share of the pictures for validation, if there is no official split.
            seed: of this division.
        """
        ground_truth = data_dir / ground_truth_name(split)
        if "val" in self.splits:
            source = self.splits[split](ground_truth, reading, None)
        else:
            source = self.splits["train"](ground_truth, reading, Part(split == "val", fraction, seed))
        return replace(source, split=split) if isinstance(source, JsonlSource) else source

    def sentence(self, folder: Path, fraction: float) -> str:
        """Return format, place and split in one line.

        Args:
            folder: the folder that was looked into.
            fraction: share of the pictures for validation, if there is no official split.
        """
        place = "" if self.where == folder else f" in {self.where.relative_to(folder)}"
        if "val" in self.splits:
            return f"{self.kind}{place}; split by {self.by}"
        share = f"{fraction:.0%} of its pictures are for validation, chosen by data.split_seed"
        return f"{self.kind}{place}; not split: {share}"


def folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder, without hidden ones."""
    return sorted(place for place in folder.iterdir() if place.is_dir() and not place.name.startswith("."))
