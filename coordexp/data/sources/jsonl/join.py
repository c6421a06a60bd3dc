"""Records of one picture -> one record; repeated image ids are numbered anew."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from coordexp.data.coco.ids import MAX_ID
from coordexp.data.sources.jsonl.record import LocatedRecord, Record
from coordexp.errors import counted


@dataclass(frozen=True)
class JoinedRecords:
    """The records of a file, one for each image.

    Attributes:
        records: in file order.
        num_repeated: records that name the picture of an earlier one and stay images of their own.
        notes: what was joined and renumbered, a sentence each.
    """

    records: list[Record]
    num_repeated: int
    notes: list[str]


@dataclass
class _ImageIds:
    """The image ids given so far."""

    taken: set[int] = field(default_factory=set[int])
    highest: int = 0
    low_ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def give(self, wanted_id: int) -> int:
        """Return the id wanted if it is free, else another one."""
        image_id = wanted_id if wanted_id not in self.taken else self._free_id()
        self.highest = max(self.highest, image_id) if self.taken else image_id
        self.taken.add(image_id)
        return image_id

    def _free_id(self) -> int:
        """Return an id above all others so far; if that is no id any more, the lowest one that is free."""
        if self.highest < MAX_ID:
            return self.highest + 1
        return next(image_id for image_id in self.low_ids if image_id not in self.taken)


def join_records(usable: Sequence[tuple[LocatedRecord, Record]]) -> JoinedRecords:
    """Join the lines of one picture, and number repeated image ids anew.

    Some tools write a line for each object: such lines are joined. A line with an id of its own and several objects
    stays an image of its own.

    Args:
        usable: records, each beside what it was made of.
    """
    records: list[Record] = []
    index_of_name: dict[str, int] = {}
    ids = _ImageIds()
    num_repeated = 0
    num_joined = 0
    num_renumbered = 0
    for located, record in usable:
        image_id = record.sample.image_id
        index = index_of_name.setdefault(located.name, len(records))
        if index < len(records):
            earlier = records[index]
            has_id = located.record.get("image_id") is not None
            is_same_image = not has_id or image_id == earlier.sample.image_id or len(record.sample.objects) <= 1
            if is_same_image:
                num_joined += 1
                records[index] = earlier.joined(record)
                continue
            num_repeated += 1
        given_id = ids.give(image_id)
        num_renumbered += given_id != image_id
        records.append(record._replace(sample=replace(record.sample, image_id=given_id)))

    notes: list[str] = []
    if num_joined:
        notes.append(
            f"{counted(num_joined, 'line')} of a picture that an earlier one names: joined to "
            f"{counted(len(records), 'image')}"
        )
    if num_renumbered:
        notes.append(
            f"renumbered, since they share an image_id with another picture: {counted(num_renumbered, 'record')}"
        )
    return JoinedRecords(records, num_repeated, notes)
