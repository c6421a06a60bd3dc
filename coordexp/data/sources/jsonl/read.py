"""A whole file of records -> a split.

lines -> parsed records -> records whose picture is there -> the split's part of them
      -> usable records, their boxes by the rule -> lines of one picture joined -> arrays
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coordexp.coord_tokens.validator import AmbiguousBoxesError
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
from coordexp.data.sources.jsonl.record import LocatedRecord, Record, usable_record
from coordexp.data.sources.jsonl.tally import Tally, raw_boxes
from coordexp.data.sources.read_split import ReadSplit
from coordexp.data.sources.turned import Turned, find_turned
from coordexp.data.split_data import Rejections
from coordexp.data.splits.part import Part
from coordexp.errors import DataError


def description_of(annotations: Path) -> str:
    """Return what a ground truth that is made of records says of itself."""
    return f"made of {annotations.name}: categories are its descriptions, areas those of boxes"


def read_records(
    path: Path, images: Path, *, reading: Reading, part: Part | None, max_bad_fraction: float
) -> ReadSplit:
    """Read the records of a split.

    Args:
        path: the file of records.
        images: folder of the pictures.
        reading: how records are read if they do not say it themselves.
        part: which of the pictures belong to the split; None for all.
        max_bad_fraction: largest accepted fraction of bad records.

    Raises:
        DataError: if the file cannot be used, boxes stand in another frame or may mean two things, or more than
            ``max_bad_fraction`` of the records are bad.
    """
    folder = ImageFolder(images)
    bad = Rejections(path)
    located = _located_records(path, folder, bad)
    all_names = [record.name for record in located]
    if part is not None:
        chosen = part.choose(all_names)
        located = [record for record in located if record.name in chosen]
    num_records = len(located) + bad.count("records")
    turned = _turned(located, folder, reading)
    tally = Tally()
    usable = _usable_records(path, located, folder, turned, reading, tally, bad)
    frame_warning = tally.frame_warning(path, max_bad_fraction=max_bad_fraction)
    rejected = bad.accept({"records": num_records}, max_bad_fraction=max_bad_fraction)
    joined = join_records(usable)
    if not joined.records:
        raise DataError(f"{path}: there is no record to use; expected one JSON object a line")

    arrays = records_as_arrays(joined.records, folder.root)
    array_counts = arrays.counts()
    del array_counts["crowd"]  # counted with the ignored objects
    counts = {
        "records": num_records,
        **array_counts,
        "ignored": sum(len(record.not_targets) for record in joined.records),
        "clipped": len(tally.clipped),
        "no_extent": len(tally.no_extent),
        "swapped": len(tally.swapped),
        "trimmed_names": tally.num_trimmed,
        "repeated_file_names": joined.num_repeated,
        "rejected_records": len(rejected),
    }
    warnings, turn_notes = turned.sentences(len(located))
    if frame_warning is not None:
        warnings.append(frame_warning)
    notes = [*folder.notes, *_mark_notes(path), *turn_notes, *joined.notes]
    notes += box_notes(
        lambda index: located[index].name, clipped=tally.clipped, no_extent=tally.no_extent, swapped=tally.swapped
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
        image_fields={record.sample.image_id: record.fields for record in joined.records},
    )


def _mark_notes(path: Path) -> list[str]:
    return ["the file starts with a byte-order mark"] if has_mark(path) else []


def _located_records(path: Path, folder: ImageFolder, bad: Rejections) -> list[LocatedRecord]:
    """Return the records of a file whose pictures are there, with a size; add the others to ``bad``."""
    parsed: list[LocatedRecord] = []
    problems: dict[int, str] = {}  # by line
    for number, line in numbered_lines(path):
        try:
            record = as_record(parsed_record(line))
            name = folder.locate(record.get("image"))
            parsed.append(LocatedRecord(number, record, name, _has_size(record)))
        except DataError as error:
            problems[number] = str(error)

    read_headers_ahead([folder.root / record.name for record in parsed if not record.has_size])
    located: list[LocatedRecord] = []
    for record in parsed:
        try:
            if not record.has_size:
                record.record["width"], record.record["height"] = read_header(folder.root / record.name).shown
            located.append(record)
        except DataError as error:
            problems[record.line] = str(error)
    for number, problem in sorted(problems.items()):
        bad.add("records", f"line {number}", problem)
    return located


def _has_size(record: Mapping[str, object]) -> bool:
    # A record with one side only is bad: it is not measured, so that the side that is missing is reported.
    return record.get("width") is not None or record.get("height") is not None


def _turned(located: Sequence[LocatedRecord], folder: ImageFolder, reading: Reading) -> Turned:
    """Return which pictures a viewer turns, by the index of their records, and in which frame their boxes stand."""
    headers = turned_headers([folder.root / record.name for record in located])
    recorded: dict[int, tuple[float, float] | None] = {}
    reach: dict[int, tuple[float, float]] = {}
    for index in headers:
        record = located[index].record
        width, height = record.get("width"), record.get("height")
        recorded[index] = None
        if located[index].has_size and isinstance(width, int) and isinstance(height, int):
            recorded[index] = width, height
        boxes = raw_boxes(record)
        # Boxes in fractions fit both frames.
        if boxes and record.get("bbox_format", reading.bbox_format) == "pixels":
            reach[index] = max(box[2] for box in boxes), max(box[3] for box in boxes)
    return find_turned(headers, recorded, reach, reading.boxes_in)


def _usable_records(
    path: Path,
    located: Iterable[LocatedRecord],
    folder: ImageFolder,
    turned: Turned,
    reading: Reading,
    tally: Tally,
    bad: Rejections,
) -> list[tuple[LocatedRecord, Record]]:
    """Return the records that can be used, beside what they were made of; add the others to ``bad``.

    Args:
        path: the file, for messages.
        located: records whose pictures are there.
        folder: of the pictures.
        turned: which pictures a viewer turns.
        reading: how records are read if they do not say it themselves.
        tally: what the boxes of the file are like; each record is added.
        bad: the bad records of the file.
    """
    usable: list[tuple[LocatedRecord, Record]] = []
    for index, record in enumerate(located):
        try:
            usable.append((record, usable_record(record, index, folder, turned, reading, tally)))
        except AmbiguousBoxesError as error:
            # A missing or wrong switch, not a bad record: no fraction of such records is accepted.
            raise DataError(f"{path}: line {record.line}: {error}") from None
        except DataError as error:
            bad.add("records", f"line {record.line}", str(error))
    return usable


def with_categories(read: ReadSplit) -> ReadSplit:
    """Return a split of records whose categories are its descriptions."""
    arrays, categories = with_description_categories(read.arrays)
    return replace(read, arrays=arrays, categories=categories)
