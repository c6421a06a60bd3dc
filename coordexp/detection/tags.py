"""Tags of images, such as their light or their weather: which slice of a comparison an image is in.

A tag is a field of the images in the annotation file, or a column of a CSV that names them.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coordexp.data.coco.image_fields import field_texts, records_of
from coordexp.data.sets.image_facts import ImageFacts
from coordexp.detection.ground_truth import GroundTruth
from coordexp.errors import DataError, counted, is_name, nearest_of, plain, show
from coordexp.files import read_content

MAX_VALUES = 50
"""Largest number of values of a tag: with more, its slices are too small and too many to be read."""

_TABLES = (".csv", ".tsv")
_ID_HEADS = ("image_id", "id")
_NAME_HEADS = ("file_name", "filename", "file", "image", "name", "path")
_NUM_EXAMPLES = 3

_Line = tuple[int, list[str]]
"""A row of a table: the number of its line, and its cells."""


@dataclass(frozen=True)
class Tag:
    """One property of images; an image without a value is absent.

    Attributes:
        name: of the field or column.
        of_image: image id -> value.
    """

    name: str
    of_image: Mapping[int, str]

    @property
    def values(self) -> list[str]:
        """The values, numbers by their size and before words."""
        return sorted(set(self.of_image.values()), key=_natural)


@dataclass(frozen=True)
class Tags:
    """The tags asked for, and what a reader must know of how they were read, a sentence each."""

    tags: tuple[Tag, ...]
    remarks: tuple[str, ...] = ()


def read_tags(
    truth: GroundTruth, asked: Sequence[str], *, option: str = "--slices", facts: ImageFacts | None = None
) -> Tags:
    """Read the tags of a ground truth's images.

    Args:
        truth: the images.
        asked: each a field of the images, or the path of a CSV with a column that names the image.
        option: the option of the command line that asked, for messages.
        facts: what a set knows of the images beside their annotations.

    Raises:
        DataError: if a field or file says nothing of these images, or has too many values to be slices.
    """
    tags: dict[str, Tag] = {}
    remarks: list[str] = []
    for field_or_path in asked:
        if Path(field_or_path).suffix.lower() in _TABLES:
            tags_of_table, remarks_of_table = _of_table(Path(field_or_path), truth)
            tags |= {tag.name: tag for tag in tags_of_table}
            remarks += remarks_of_table
        else:
            tags[field_or_path] = _of_field(field_or_path, truth, option=option, facts=facts)
    return _with_remarks(tags.values(), truth, remarks)


def tags_of_set(truth: GroundTruth, facts: ImageFacts) -> Tags:
    """Return the tags that a set was made with; tags that make no slices are named in a remark.

    Args:
        truth: the images that were evaluated, all or some of the set's.
        facts: of the whole set.
    """
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
    """Return tags with the remarks on them, and a remark for each tag that some images have no value of."""
    all_tags = tuple(tags)
    all_remarks = list(remarks)
    for tag in all_tags:
        num_without = len(truth.sizes_px) - len(tag.of_image)
        if num_without:
            all_remarks.append(
                f"{num_without:,} of {counted(len(truth.sizes_px), 'image')} have no value of {tag.name}: they are in "
                "none of its slices."
            )
    return Tags(all_tags, tuple(all_remarks))


def _of_field(field: str, truth: GroundTruth, *, option: str, facts: ImageFacts | None) -> Tag:
    records = records_of(truth.path, facts)
    texts = field_texts(list(records.values()), field, option=option, where=str(truth.path))
    tag = Tag(field, {image_id: text for image_id, text in zip(records, texts, strict=True) if text is not None})
    problem = _no_slices(tag)
    if problem:
        raise DataError(f"{truth.path}: {option} {field}: {problem}")
    return tag


def _no_slices(tag: Tag) -> str:
    """Return why the values of a tag make no slices, and the way on; "" if they do."""
    values = tag.values
    if not is_name(tag.name):
        return "its name is not printable text"
    if len(values) == 1:
        return f"all images have the value {show(values[0])}; choose what tells images apart"
    if len(values) > MAX_VALUES:
        examples = ", ".join(show(value) for value in values[:_NUM_EXAMPLES])
        return (
            f"it has {len(values):,} values, such as {examples}, and slices can be made of at most {MAX_VALUES}; "
            "choose a tag with fewer, or give a CSV with a column that puts the values into ranges"
        )
    unfit_values = [value for value in values if not is_name(value)]
    return f"the value {show(unfit_values[0])} is not printable text" if unfit_values else ""


def _of_table(path: Path, truth: GroundTruth) -> tuple[list[Tag], list[str]]:
    """Read the columns of a CSV that make slices; the others are named in a remark."""
    (_, first_cells), *lines = _lines(path)
    heads = [head.strip() for head in first_cells]
    key_column = _key_column(path, heads)
    is_by_id = heads[key_column].casefold() in _ID_HEADS
    image_of_line = [_image_of(_cell(cells, key_column), truth, is_by_id=is_by_id) for _, cells in lines]
    _check_names(path, lines, key_column, image_of_line, truth)

    tags: list[Tag] = []
    remarks: list[str] = []
    for column, head in enumerate(heads):
        if column == key_column or not head:
            continue
        tag = Tag(head, _values_of_column(path, lines, column, image_of_line, head))
        problem = _no_slices(tag) if tag.of_image else "it is empty"
        if problem:
            remarks.append(f"{path.name}: column {show(head)} makes no slices: {problem}.")
        else:
            tags.append(tag)
    if not tags:
        reason = remarks[0] if remarks else f"{path.name} has no column but {show(heads[key_column])}."
        raise DataError(f"{path}: no column makes slices. {reason}")

    unknown_names = [
        _cell(cells, key_column) for (_, cells), image_id in zip(lines, image_of_line, strict=True) if image_id is None
    ]
    if unknown_names:
        remarks.append(
            f"{path.name}: {len(unknown_names):,} of {counted(len(lines), 'row')} name no image of {truth.path.name}, "
            f"such as {show(unknown_names[0])}."
        )
    return tags, remarks


def _cell(cells: Sequence[str], column: int) -> str:
    """Return the text of a cell; a row may be shorter than the heads, as spreadsheets leave out empty cells."""
    return cells[column].strip() if column < len(cells) else ""


def _lines(path: Path) -> list[_Line]:
    """Return the rows of a CSV that are not empty; the first holds the heads, and at least one follows."""
    try:
        text = read_content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; save the table as CSV in UTF-8") from None
    first_line = text.partition("\n")[0]
    separator = max(",;\t", key=first_line.count)  # Spreadsheets write the separator of their country.
    reader = csv.reader(text.splitlines(), delimiter=separator)
    lines = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    if len(lines) < 2:
        raise DataError(f"{path}: expected a line of heads, such as image,light, and a line for each image")
    return lines


def _key_column(path: Path, heads: Sequence[str]) -> int:
    """Return the column that names images."""
    key_heads = (*_NAME_HEADS, *_ID_HEADS)
    folded = [head.casefold() for head in heads]
    for name in key_heads:
        if name in folded:
            return folded.index(name)
    raise DataError(
        f"{path}: line 1: no column names the images: got {show(', '.join(map(plain, heads)))}, expected one of "
        f"{', '.join(key_heads)}; {nearest_of(heads[0].casefold(), key_heads)}"
    )


def _image_of(text: str, truth: GroundTruth, *, is_by_id: bool) -> int | None:
    """Return the image that a cell means, by its id or by its name; None if the ground truth has no such image."""
    # A spreadsheet may write the id 7 as 7.0.
    if is_by_id and re.fullmatch(r"-?\d+(\.0)?", text):
        image_id = int(text.removesuffix(".0"))
        return image_id if image_id in truth.sizes_px else None
    return truth.names.find(text) if text else None


def _check_names(
    path: Path, lines: Sequence[_Line], key_column: int, image_of_line: Sequence[int | None], truth: GroundTruth
) -> None:
    """Refuse a table that names none of the images."""
    if any(image_id is not None for image_id in image_of_line):
        return
    names_of_table = [_cell(cells, key_column) for _, cells in lines[:_NUM_EXAMPLES]]
    names_of_images = [*truth.file_names.values(), *truth.sizes_px][:_NUM_EXAMPLES]
    raise DataError(
        f"{path}: none of its {counted(len(lines), 'row')} names one of the {len(truth.sizes_px):,} images of "
        f"{truth.path}: it has {', '.join(map(show, names_of_table))}, and the images are "
        f"{', '.join(map(show, names_of_images))}; is it the table of another split?"
    )


def _values_of_column(
    path: Path, lines: Sequence[_Line], column: int, image_of_line: Sequence[int | None], head: str
) -> dict[int, str]:
    """Return image id -> value of a column.

    Raises:
        DataError: if two lines give one image different values.
    """
    values: dict[int, str] = {}
    line_of_value: dict[int, int] = {}
    for (line_number, cells), image_id in zip(lines, image_of_line, strict=True):
        value = _cell(cells, column)
        if image_id is None or not value:
            continue
        if values.get(image_id, value) != value:
            raise DataError(
                f"{path}: lines {line_of_value[image_id]} and {line_number} give image {image_id} two values of "
                f"{show(head)}, {show(values[image_id])} and {show(value)}; leave one line for each image"
            )
        values[image_id] = value
        line_of_value[image_id] = line_number
    return values


def _natural(value: str) -> tuple[bool, float, str]:
    """Return a key that sorts numbers by their size, and before words."""
    try:
        return False, float(value), value
    except ValueError:
        return True, 0.0, value
