"""A split as JSONL, one record for each image; every field is checked. A validation split becomes a COCO file once.

``{"image": "a.jpg", "width": 640, "height": 480, "image_id": 7, "objects": [{"desc": "cat", "bbox": [...]}]}``

``image`` and ``objects`` are enough. Width and height then come from the image's header, and the id is the number of
the line. :mod:`coordexp.coord_tokens.validator` says what boxes may be. What other trainers write is read as well, also
as one list in a file (:mod:`coordexp.data.sources.jsonl.dialects`).
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from coordexp.data.reading import Reading
from coordexp.data.sample import Split
from coordexp.data.sources.jsonl.lines import numbered_lines
from coordexp.data.sources.jsonl.read import description_of, read_records, with_categories
from coordexp.data.sources.read_split import ReadSplit, as_coco
from coordexp.data.split_data import SplitData
from coordexp.data.splits.part import Part
from coordexp.errors import DataError
from coordexp.files import kept_json, sha256_of_file, write_json

_GROUND_TRUTH_VERSION = 2
"""Raised when equal records would give another ground truth."""


@dataclass(frozen=True)
class JsonlSource:
    """A split as JSONL.

    Attributes:
        annotations: the file of records.
        images: folder of the pictures.
        ground_truth_file: the COCO file that is made of the records for AP.
        reading: how records are read if they do not say it themselves.
        part: which of the pictures belong to the split; None for all.
        split: which one.
    """

    annotations: Path
    images: Path
    ground_truth_file: Path
    reading: Reading = field(default_factory=Reading)
    part: Part | None = None
    split: Split = "train"
    generated = None  # of no use here: the same attribute as that of CocoSource

    @property
    def name(self) -> str:
        return self.annotations.absolute().parent.name

    @property
    def given_images(self) -> Path:
        return self.images

    def read(self, *, max_bad_fraction: float, accept_prequantised: bool) -> SplitData:
        """Read the split as samples; the categories of a validation split are its descriptions."""
        read = self.read_split(max_bad_fraction=max_bad_fraction)
        if read.prequantised and not accept_prequantised:
            raise DataError(read.prequantised)
        return read.data

    def read_split(self, *, max_bad_fraction: float) -> ReadSplit:
        """Read the split; boxes that are bins already are noted, and no reason to stop here.

        Raises:
            DataError: if the file cannot be used, or more than ``max_bad_fraction`` of its records are bad.
        """
        read = self._read(max_bad_fraction=max_bad_fraction)
        return with_categories(read) if self.split == "val" else read

    def ground_truth(self) -> Path:
        """Make the COCO file of the records, unless it is there.

        Boxes are at original pixel size, and an object's area is that of its box. Categories are the descriptions;
        descriptions are folded as :class:`coordexp.detection.names.categories.CategoryIndex` does.
        """
        if not self.annotations.is_file():
            raise DataError(f"{self.annotations}: file not found")
        # What the file is made of, kept in the file itself: with another stamp it is made again.
        stamp: dict[str, object] = {
            "description": description_of(self.annotations),
            "version": _GROUND_TRUTH_VERSION,
            "jsonl_sha256": sha256_of_file(self.annotations),
            "reading": asdict(self.reading),
            "part": None if self.part is None else asdict(self.part),
        }
        existing = kept_json(self.ground_truth_file)
        if not isinstance(existing, dict) or existing.get("info") != stamp:
            read = self._read(max_bad_fraction=self.reading.max_bad_fraction)
            write_json(self.ground_truth_file, {"info": stamp, **as_coco(with_categories(read))})
        return self.ground_truth_file

    def _read(self, *, max_bad_fraction: float) -> ReadSplit:
        return read_records(
            self.annotations, self.images, reading=self.reading, part=self.part, max_bad_fraction=max_bad_fraction
        )

    def count_images(self) -> int:
        return sum(1 for _ in numbered_lines(self.annotations))


def ground_truth_name(split: Split) -> str:
    """Return the name of the COCO file that is made for AP."""
    return f"{split}_ground_truth.json"
