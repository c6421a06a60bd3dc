"""Tags of images, such as their light or their weather: which slice of a comparison an image is in.

A tag is a field of the images in the annotation file, or a column of a CSV that names them.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coordexp.data.coco.image_fields import field_texts, records_of
from coordexp.data.sets.image_facts import ImageFacts
from coordexp.detection.ground_truth import GroundTruth
from coordexp.errors import DataError, counted, is_name, nearest_of, plain, show
from coordexp.files import read_content

MAX_VALUES = 50
"""Of a tag: with more, its slices are too small and too many to be read."""

_TABLES = (".csv", ".tsv")
_ID_HEADS = ("image_id", "id")
_NAME_HEADS = ("file_name", "filename", "file", "image", "name", "path")
_SHOWN = 3


@dataclass(frozen=True)
class Tag:
    """What is known of images by one name; an image without a value is absent."""

    name: str
    of_image: Mapping[int, str]

    @property
    def values(self) -> list[str]:
        """Return its values, numbers by their size and before words."""
        return sorted(set(self.of_image.values()), key=_natural)


@dataclass(frozen=True)
class Tags:
    """The tags asked for, and what a reader must know of how they were read, a sentence each."""

    tags: tuple[Tag, ...]
    remarks: tuple[str, ...] = ()


def read_tags(
    truth: GroundTruth, asked: Sequence[str], *, option: str = "--slices", facts: ImageFacts | None = None
) -> Tags:
    """Read tags: each ``asked`` is a field of the images, or the path of a CSV with a column for the image.

    ``facts`` are what a set knows of the images beside their annotations.

    Raises:
        DataError: if a field or file says nothing of these images, or has too many values to be slices.
    """
    tags: dict[str, Tag] = {}
    remarks: list[str] = []
    for text in asked:
        if Path(text).suffix.lower() in _TABLES:
            read, notes = _of_table(Path(text), truth)
        else:
            read, notes = _of_field(text, truth, option=option, facts=facts)
        tags |= {tag.name: tag for tag in read}
        remarks += notes
    return _with_remarks(tags.values(), truth, remarks)


def tags_of_set(truth: GroundTruth, facts: ImageFacts) -> Tags:
    """Return the tags that a set was made with; those that make no slices are named in a remark."""
    names = dict.fromkeys(name for fact in facts.images for name in fact.tags)
    tags: list[Tag] = []
    remarks: list[str] = []
    for name in names:
        values = facts.tag_values(name)
        tag = Tag(name, {image_id: values[image_id] for image_id in truth.sizes_px if image_id in values})
        problem = _no_slices(tag) if tag.of_image else "none of these images has a value"
        if problem:
            remarks.append(f"data.tags: {show(name)} makes no slices: {problem}.")
        else:
            tags.append(tag)
    return _with_remarks(tags, truth, remarks)


def _with_remarks(tags: Iterable[Tag], truth: GroundTruth, remarks: Sequence[str]) -> Tags:
    """Return tags with the remarks on them, and how many images have no value of one."""
    tags, remarks = list(tags), list(remarks)
    for tag in tags:
        without = len(truth.sizes_px) - len(tag.of_image)
        if without:
            remarks.append(
                f"{without:,} of {counted(len(truth.sizes_px), 'image')} have no value of {tag.name}: they are in none "
                "of its slices."
            )
    return Tags(tuple(tags), tuple(remarks))


def _of_field(field: str, truth: GroundTruth, *, option: str, facts: ImageFacts | None) -> tuple[list[Tag], list[str]]:
    records = records_of(truth.path, facts)
    texts = field_texts(list(records.values()), field, option=option, where=str(truth.path))
    tag = Tag(field, {image_id: text for image_id, text in zip(records, texts, strict=True) if text is not None})
    if problem := _no_slices(tag):
        raise DataError(f"{truth.path}: {option} {field}: {problem}")
    return [tag], []


def _no_slices(tag: Tag) -> str:
    """Return why the values of a tag make no slices, and what to do; "" where they do."""
    values = tag.values
    if not is_name(tag.name):
        return "its name is not printable text"
    if len(values) == 1:
        return f"all images have the value {show(values[0])}; choose what tells images apart"
    if len(values) > MAX_VALUES:
        shown = ", ".join(show(value) for value in values[:_SHOWN])
        return (
            f"it has {len(values):,} values, such as {shown}, and slices can be made of at most {MAX_VALUES}; choose "
            "what has fewer, or give a CSV with a column that puts them into ranges"
        )
    unfit = [value for value in values if not is_name(value)]
    return f"the value {show(unfit[0])} is not printable text" if unfit else ""


def _of_table(path: Path, truth: GroundTruth) -> tuple[list[Tag], list[str]]:
    """Read the columns of a CSV that make slices; the others are named in a remark."""
    lines = list(_lines(path))
    heads = [head.strip() for head in lines[0][1]]
    key = _key_column(path, heads)
    by_id = heads[key].casefold() in _ID_HEADS
    image_of_line = [_image_of(cells[key].strip() if key < len(cells) else "", truth, by_id) for _, cells in lines[1:]]
    _check_names(path, lines[1:], key, image_of_line, truth)
    tags: list[Tag] = []
    remarks: list[str] = []
    for at, head in enumerate(heads):
        if at == key or not head:
            continue
        tag = Tag(head, _column(path, lines[1:], at, image_of_line, head))
        problem = _no_slices(tag) if tag.of_image else "it is empty"
        if problem:
            remarks.append(f"{path.name}: column {show(head)} makes no slices: {problem}.")
        else:
            tags.append(tag)
    if not tags:
        why = remarks[0] if remarks else f"{path.name} has no column but {show(heads[key])}."
        raise DataError(f"{path}: no column makes slices. {why}")
    unknown = [cells[key] for (_, cells), image_id in zip(lines[1:], image_of_line, strict=True) if image_id is None]
    if unknown:
        remarks.append(
            f"{path.name}: {len(unknown):,} of {counted(len(lines) - 1, 'row')} name no image of {truth.path.name}, "
            f"such as {show(unknown[0])}."
        )
    return tags, remarks


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV that are not empty, with the number of their line; the first holds the heads."""
    try:
        text = read_content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; save the table as CSV in UTF-8") from None
    first = text.partition("\n")[0]
    # Spreadsheets write the separator of their country.
    separator = max(",;\t", key=first.count)
    reader = csv.reader(text.splitlines(), delimiter=separator)
    rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    if len(rows) < 2:
        raise DataError(f"{path}: expected a line of heads, such as image,light, and a line for each image")
    yield from rows


def _key_column(path: Path, heads: Sequence[str]) -> int:
    """Return the column that names images."""
    folded = [head.casefold() for head in heads]
    for name in (*_NAME_HEADS, *_ID_HEADS):
        if name in folded:
            return folded.index(name)
    expected = ", ".join((*_NAME_HEADS, *_ID_HEADS))
    raise DataError(
        f"{path}: line 1: no column names the images: got {show(', '.join(map(plain, heads)))}, expected one of "
        f"{expected}; {nearest_of(heads[0].casefold(), (*_NAME_HEADS, *_ID_HEADS))}"
    )


def _image_of(text: str, truth: GroundTruth, by_id: bool) -> int | None:
    """Return the image that a cell means, by its id or by its name; None where it is none of the ground truth."""
    if by_id and re.fullmatch(r"-?\d+(\.0)?", text):
        image_id = int(text.removesuffix(".0"))
        return image_id if image_id in truth.sizes_px else None
    return truth.names.find(text) if text else None


def _check_names(
    path: Path, lines: Sequence[tuple[int, list[str]]], key: int, images: Sequence[int | None], truth: GroundTruth
) -> None:
    """Refuse a table that names none of the images."""
    if any(image_id is not None for image_id in images):
        return
    written = ", ".join(show(cells[key]) for _, cells in lines[:_SHOWN] if key < len(cells))
    wanted = ", ".join(show(name) for name in [*truth.file_names.values(), *truth.sizes_px][:_SHOWN])
    raise DataError(
        f"{path}: none of its {counted(len(lines), 'row')} names one of the {len(truth.sizes_px):,} images of "
        f"{truth.path}: it has {written}, and the images are {wanted}; is it the table of another split?"
    )


def _column(
    path: Path, lines: Sequence[tuple[int, list[str]]], at: int, images: Sequence[int | None], head: str
) -> dict[int, str]:
    """Return the values of a column by image, or raise a DataError where two lines say different things of one."""
    values: dict[int, str] = {}
    said_in: dict[int, int] = {}
    for (number, cells), image_id in zip(lines, images, strict=True):
        value = cells[at].strip() if at < len(cells) else ""
        if image_id is None or not value:
            continue
        if values.get(image_id, value) != value:
            raise DataError(
                f"{path}: lines {said_in[image_id]} and {number} give image {image_id} two values of {show(head)}, "
                f"{show(values[image_id])} and {show(value)}; leave one line for each image"
            )
        values[image_id] = value
        said_in[image_id] = number
    return values


def _natural(value: str) -> tuple[bool, float, str]:
    """Order numbers by their size, and before words."""
    try:
        return False, float(value), value
    except ValueError:
        return True, 0.0, value
