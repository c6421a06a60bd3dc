"""A whole file of records -> a split."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coordexp.coord_tokens.validator import (
    AmbiguousBoxesError,
)
from coordexp.data.box_rule import box_notes
from coordexp.data.coco.content import with_description_categories
from coordexp.data.coco.json_text import has_mark
from coordexp.data.images.folder import ImageFolder
from coordexp.data.images.headers import read_header, read_headers_ahead, turned_headers
from coordexp.data.reading import Reading
from coordexp.data.sources.jsonl.arrays import records_as_arrays
from coordexp.data.sources.jsonl.dialects import as_record
from coordexp.data.sources.jsonl.join import join_records
from coordexp.data.sources.jsonl.lines import numbered_lines, parsed_record
from coordexp.data.sources.jsonl.record import LocatedRecord, Record, Tally, raw_boxes, usable_record
from coordexp.data.sources.read_split import ReadSplit
from coordexp.data.sources.turned import Turned, find_turned
from coordexp.data.split_data import Rejections
from coordexp.data.splits.originals import Part
from coordexp.errors import DataError


def description_of(annotations: Path) -> str:
    return f"made of {annotations.name}: categories are its descriptions, areas those of boxes"


def read_records(
    path: Path, images: Path, *, reading: Reading, part: Part | None, max_bad_fraction: float
) -> ReadSplit:
    folder, bad = ImageFolder(images), Rejections(path)
    found = _find_pictures(path, folder, bad)
    all_names = [one.name for one in found]
    if part is not None:
        chosen = part.choose(all_names)
        found = [one for one in found if one.name in chosen]
    num_records = len(found) + bad.count("records")
    turned = _turned(found, folder, reading)
    tally = Tally()
    made: list[tuple[LocatedRecord, Record]] = []
    for place, one in enumerate(found):
        try:
            usable = usable_record(one, place, folder, turned, reading, tally)
        except AmbiguousBoxesError as error:
            # A missing or wrong switch, not a bad record: no fraction of such records is accepted.
            raise DataError(f"{path}: line {one.number}: {error}") from None
        except DataError as error:
            bad.add("records", f"line {one.number}", str(error))
        else:
            made.append((one, usable))
    frame_warning = tally.frame_warning(path, max_bad_fraction=max_bad_fraction)
    rejected = bad.accept({"records": num_records}, max_bad_fraction=max_bad_fraction)
    records, num_repeated, joined = join_records(made)
    if not records:
        raise DataError(f"{path}: there is no record to use; expected one JSON object a line")
    arrays = records_as_arrays(records, folder.root)
    counts = {
        "records": num_records,
        **{name: count for name, count in arrays.counts().items() if name != "crowd"},
        "ignored": sum(len(record.not_targets) for record in records),
        "clipped": len(tally.clipped),
        "no_extent": len(tally.no_extent),
        "swapped": len(tally.swapped),
        "trimmed_names": tally.num_trimmed,
        "repeated_file_names": num_repeated,
        "rejected_records": len(rejected),
    }
    warnings, frame_notes = turned.sentences(len(found))
    if frame_warning is not None:
        warnings.append(frame_warning)
    notes = [*folder.notes]
    if has_mark(path):
        notes.append("the file starts with a byte-order mark")
    notes += frame_notes + joined
    notes += box_notes(
        lambda place: found[place].name, clipped=tally.clipped, no_extent=tally.no_extent, swapped=tally.swapped
    )
    return ReadSplit(
        arrays=arrays,
        rejected=rejected,
        counts=counts,
        categories={},
        warnings=tuple(warnings),
        notes=tuple(notes),
        all_split_names=all_names,
        description=description_of(path),
        prequantised=f"{path}: {tally.prequantised}" if tally.prequantised else "",
        image_fields={record.sample.image_id: record.fields for record in records},
    )


def _find_pictures(path: Path, folder: ImageFolder, bad: Rejections) -> list[LocatedRecord]:
    """Return the records of a file whose pictures are there, with a size."""
    located: list[tuple[int, dict[str, object], str]] = []
    problems: dict[int, str] = {}
    for number, line in numbered_lines(path):
        try:
            record = as_record(parsed_record(line))
            located.append((number, record, folder.locate(record.get("image"))))
        except DataError as error:
            problems[number] = str(error)
    read_headers_ahead([folder.root / name for _, record, name in located if not _has_size(record)])
    found: list[LocatedRecord] = []
    for number, record, name in located:
        has_size = _has_size(record)
        try:
            if not has_size:
                record["width"], record["height"] = read_header(folder.root / name).shown
            found.append(LocatedRecord(number, record, name, has_size))
        except DataError as error:
            problems[number] = str(error)
    for number, problem in sorted(problems.items()):
        bad.add("records", f"line {number}", problem)
    return found


def _has_size(record: Mapping[str, object]) -> bool:
    return record.get("width") is not None or record.get("height") is not None


def _turned(found: Sequence[LocatedRecord], folder: ImageFolder, reading: Reading) -> Turned:
    headers = turned_headers([folder.root / one.name for one in found])
    recorded: dict[int, tuple[float, float] | None] = {}
    reach: dict[int, tuple[float, float]] = {}
    for place in headers:
        record = found[place].record
        width, height = record.get("width"), record.get("height")
        recorded[place] = None
        if found[place].has_size and isinstance(width, int) and isinstance(height, int):
            recorded[place] = width, height
        if (boxes := raw_boxes(record)) and record.get("bbox_format", reading.bbox_format) == "pixels":
            reach[place] = max(box[2] for box in boxes), max(box[3] for box in boxes)
    return find_turned(headers, recorded, reach, reading.boxes_in)


def with_categories(read: ReadSplit) -> ReadSplit:
    """Return a split of records, whose categories are its descriptions."""
    arrays, categories = with_description_categories(read.arrays)
    return replace(read, arrays=arrays, categories=categories)
