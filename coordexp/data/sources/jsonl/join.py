"""Records of one picture -> one record; repeated image ids are numbered anew."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from coordexp.data.coco.ids import MAX_ID
from coordexp.data.sources.jsonl.record import LocatedRecord, Record
from coordexp.errors import counted


def join_records(made: Sequence[tuple[LocatedRecord, Record]]) -> tuple[list[Record], int, list[str]]:
    """Return the records, lines of one picture joined to one; how many name a known picture; and what was changed.

    One with an id of its own and several objects stays an image of its own; ids that others have are numbered anew.
    """
    records: list[Record] = []
    places: dict[str, int] = {}
    ids: set[int] = set()
    highest, low_ids = 0, itertools.count(1)
    num_repeated = num_joined = num_renumbered = 0
    for one, record in made:
        place = places.setdefault(one.name, len(records))
        image_id = record.sample.image_id
        if place < len(records):
            known = records[place]
            has_id = one.record.get("image_id") is not None
            if not has_id or image_id == known.sample.image_id or len(record.sample.objects) <= 1:
                num_joined += 1
                records[place] = known.joined(record)
                continue
            num_repeated += 1
        if image_id in ids:
            num_renumbered += 1
            # Above all others so far; where that is no id any more, the lowest that is free.
            image_id = highest + 1 if highest < MAX_ID else next(free for free in low_ids if free not in ids)
        highest = max(highest, image_id) if ids else image_id
        ids.add(image_id)
        records.append(record._replace(sample=replace(record.sample, image_id=image_id)))
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
    return records, num_repeated, notes
