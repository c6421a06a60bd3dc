"""What LVIS writes otherwise than COCO: images by address, verified absence, and how rare a category is.

LVIS marks, for each image, which absent categories were verified (``neg_category_ids``) and which
were not annotated to the last object (``not_exhaustive_category_ids``); its evaluation needs both.
Its images are those of COCO: ``--images`` is the folder that holds ``train2017`` and ``val2017``, or
one of these itself.
"""

from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from coordexp.data.sources.coco_rows import CategoryRow, Fields, ImageRow, category_row, image_row
from coordexp.data.sources.json_file import show
from coordexp.errors import DataError

_FREQUENCIES = ("r", "c", "f")  # rare, common, frequent
_ID_LISTS = ("neg_category_ids", "not_exhaustive_category_ids")


def lvis_category_row(place: int, fields: Fields) -> CategoryRow:
    """Check a category, and keep its frequency.

    Raises:
        DataError: if it cannot be used.
    """
    row = category_row(place, fields)
    frequency = fields.get("frequency")
    if frequency not in _FREQUENCIES:
        raise DataError(f"frequency is {show(frequency)}, expected r, c or f (rare, common, frequent)")
    return row._replace(extras={"frequency": str(frequency)})


def lvis_image_row(place: int, fields: Fields, *, images: Path) -> ImageRow:
    """Check an image, take its name from ``coco_url`` and keep its lists of categories.

    Args:
        place: index of the entry.
        fields: the entry.
        images: the image folder.

    Raises:
        DataError: if it cannot be used.
    """
    row = image_row(place, fields)
    name = row.file_name if row.file_name is not None else _name_from_url(fields.get("coco_url"), images)
    return row._replace(file_name=name, extras={key: _id_list(fields, key) for key in _ID_LISTS})


def _name_from_url(url: object, images: Path) -> str:
    """``http://images.cocodataset.org/train2017/7.jpg`` -> ``train2017/7.jpg``, or ``7.jpg`` in a folder train2017."""
    if not isinstance(url, str):
        raise DataError(f"coco_url is {show(url)}, expected the address of the image")
    try:
        parts = PurePosixPath(unquote(urlsplit(url).path)).parts
    except ValueError as error:
        raise DataError(f"coco_url is {show(url)}, expected the address of the image ({error})") from None
    if len(parts) < 2:
        raise DataError(f"coco_url is {show(url)}, expected an address that ends in a folder and a file name")
    folder, name = parts[-2:]
    return name if folder in {"/", images.name} else f"{folder}/{name}"


def _id_list(fields: Fields, name: str) -> list[int]:
    values = fields.get(name)
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise DataError(f"{name} is {show(values)}, expected a list of category ids")
    return [value for value in values if isinstance(value, int)]
