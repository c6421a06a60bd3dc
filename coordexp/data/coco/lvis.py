"""The entries of LVIS's annotation files.

For each image, LVIS marks which absent categories were verified (``neg_category_ids``) and which categories were not
annotated exhaustively (``not_exhaustive_category_ids``). Its evaluation needs both. Its images are those of COCO:
``--images`` is the folder that holds ``train2017`` and ``val2017``, or one of the two.
"""

from pathlib import Path, PurePosixPath
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

from msgspec import Meta

from coordexp.data.coco.entries import Category, Image
from coordexp.errors import DataError, show


class LvisCategory(Category, gc=False, kw_only=True):
    """An entry of ``categories``, with its frequency: rare, common or frequent."""

    frequency: Annotated[Literal["r", "c", "f"], Meta(description="r, c or f (rare, common, frequent)")]

    def extras(self) -> dict[str, str]:
        return {"frequency": self.frequency}


class LvisImage(Image, gc=False, kw_only=True):
    """An entry of ``images``, with its lists of categories; ``coco_url`` names its file."""

    neg_category_ids: Annotated[list[int], Meta(description="a list of category ids")]
    not_exhaustive_category_ids: Annotated[list[int], Meta(description="a list of category ids")]
    coco_url: object = None

    def name_in(self, folder: Path) -> str:
        """Return ``train2017/7.jpg`` for ``http://.../train2017/7.jpg``, or ``7.jpg`` in a folder ``train2017``.

        Raises:
            DataError: if ``coco_url`` is no address that ends in a folder and a file.
        """
        if self.file_name is not None:
            return self.file_name
        expected = "expected an address that ends in a folder and a file name"
        address = self.coco_url if isinstance(self.coco_url, str) else ""
        try:
            path_parts = PurePosixPath(unquote(urlsplit(address).path)).parts
        except ValueError as error:
            raise DataError(f"coco_url is {show(self.coco_url)}, {expected} ({error})") from None
        if len(path_parts) < 2:
            raise DataError(f"coco_url is {show(self.coco_url)}, {expected}")
        *_, parent, name = path_parts
        return name if parent in {"/", folder.name} else f"{parent}/{name}"

    def extras(self) -> dict[str, list[int]]:
        """Return the two lists of categories."""
        return {
            "neg_category_ids": self.neg_category_ids,
            "not_exhaustive_category_ids": self.not_exhaustive_category_ids,
        }
