"""What a source makes of the files of a split: the arrays of the set, and what was repaired, refused and remarked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from coordexp.data.coco.content import coco_content
from coordexp.data.sets.split_arrays import SplitArrays
from coordexp.data.split_data import Rejected, SplitData
from coordexp.data.splits.part import Part

_COUNTED_OVER_WHOLE = "bad records are counted over the whole set, before it is divided into training and validation"


@dataclass(frozen=True)
class ReadSplit:
    """A split, or a whole data set that is still to be divided.

    Attributes:
        arrays: every image and object.
        rejected, counts, categories, warnings, notes: as in :class:`coordexp.data.split_data.SplitData`.
        category_fields: further fields of a category, such as LVIS's ``frequency``, by category id.
        all_split_names: names by which a set without a split is divided. Pictures that cannot be used are among them:
            what is refused later must not change the split.
        is_original: whether the annotation file, as it is, can be the ground truth that AP is measured on.
        description: what the ground truth says of itself if it is not the original.
        prequantised: the place of boxes that are bins already, with the cure; "" if none are.
        image_fields: what the annotations say of each image beside its name, size and objects, by image id.
    """

    arrays: SplitArrays
    rejected: tuple[Rejected, ...]
    counts: Mapping[str, int]
    categories: Mapping[int, str]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    category_fields: Mapping[int, Mapping[str, str]] = field(default_factory=dict[int, Mapping[str, str]])
    all_split_names: Sequence[str] = ()
    is_original: bool = False
    description: str = ""
    prequantised: str = ""
    image_fields: Mapping[int, Mapping[str, object]] = field(default_factory=dict[int, Mapping[str, object]])

    @property
    def data(self) -> SplitData:
        """The split as samples."""
        return SplitData(
            self.arrays.samples(), self.rejected, dict(self.counts), dict(self.categories), self.warnings, self.notes
        )

    def take(self, images: Sequence[int]) -> "ReadSplit":
        """Return some of the images, without what was refused or remarked."""
        arrays = self.arrays.take(images)
        return replace(
            self, arrays=arrays, rejected=(), counts=arrays.counts(), warnings=(), notes=(), is_original=False
        )

    def divided(self, part: Part, units: Mapping[str, str]) -> "ReadSplit":
        """Return a split's part of a whole set; what was refused and remarked goes with the training part.

        Args:
            part: the part of which split.
            units: the unit of each picture by its split name; a picture that is absent is a unit of its own.
        """
        # Units are known of usable pictures alone; without units, all names are divided.
        chosen = part.choose(self.arrays.split_names if units else self.all_split_names, units)
        images = [image for image, name in enumerate(self.arrays.split_names) if name in chosen]
        taken = self.take(images)
        if part.is_val:
            return taken
        notes = (*self.notes, _COUNTED_OVER_WHOLE) if self.rejected else self.notes
        counts = {**self.counts, **taken.counts}
        return replace(taken, rejected=self.rejected, counts=counts, warnings=self.warnings, notes=notes)


def as_coco(read: ReadSplit) -> dict[str, list[dict[str, object]]]:
    """Return a split as the sections of COCO's format."""
    return coco_content(read.arrays, read.categories, read.category_fields)
