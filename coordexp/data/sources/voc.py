"""Pascal VOC: an XML file for each picture, in ``Annotations`` or beside the pictures.

Corners are whole pixels counted from 1, both inside the box, as VOC's own devkit has them: the box reaches from
``xmin - 1`` to ``xmax``. Tools that count from 0 give themselves away by a corner of 0 or a fraction.
"""

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from coordexp.data.coco.file import CocoFile
from coordexp.data.images.folder import ImageFolder
from coordexp.data.sources.coco.source import CocoSource
from coordexp.data.sources.labelled import Labelled, coco_of
from coordexp.data.sources.text_file import lines_of, read_text
from coordexp.errors import DataError, counted, show

_BOX_TAGS = frozenset(("bndbox", "robndbox", "bbox", "box", "polygon", "xmin"))
Corners = tuple[float, float, float, float]


@dataclass(frozen=True)
class VocSource(CocoSource):
    """A split of Pascal VOC; ``annotations`` is the folder of its XML files.

    Attributes:
        listed: the official list of the split, a name on each line; None for every XML file of the folder.
        label_folders: folders of the XML files of all splits, which count corners alike.
    """

    listed: Path | None = None
    label_folders: tuple[Path, ...] = ()
    is_converted = True

    def file(self) -> CocoFile:
        """Return the entries of all pictures of the split."""
        folder = ImageFolder(self.images)
        pictures: list[Labelled] = []
        bad: list[str] = []
        num_difficult = 0
        counts_from_zero = _counts_from_zero(self.label_folders or (self.annotations,))
        for path in xml_files(self.annotations, self.listed):
            try:
                picture, num_difficult_of_picture = _read(path, folder, from_zero=counts_from_zero)
            except DataError as error:
                bad.append(str(error))
            else:
                pictures.append(picture)
                num_difficult += num_difficult_of_picture
        notes: list[str] = []
        if counts_from_zero:
            notes.append("corners count from 0, since one of them is 0 or a fraction")
        if num_difficult:
            notes.append(f"marked difficult: {counted(num_difficult, 'box')}, taken like all others")
        return coco_of(self.annotations, pictures, bad=bad, notes=[*notes, *folder.notes])


@lru_cache(maxsize=16)
def _counts_from_zero(folders: tuple[Path, ...]) -> bool:
    """Return whether a box that has extent has a corner of 0, or a fraction: VOC's own boxes have neither."""
    for path in _xml_below(folders):
        for box in re.findall(r"<bndbox>(.*?)</bndbox>", read_text(path), re.DOTALL | re.IGNORECASE):
            numbers = re.findall(r"<([xy]m\w+)>\s*(-?\d+\.?\d*)\s*</", box, re.IGNORECASE)
            sides = {name.lower(): float(value) for name, value in numbers}
            has_extent = len(sides) == 4 and sides["xmin"] != sides["xmax"] and sides["ymin"] != sides["ymax"]
            if has_extent and (min(sides.values()) == 0 or any(value % 1 for value in sides.values())):
                return True
    return False


def _xml_below(folders: tuple[Path, ...]) -> Iterator[Path]:
    for folder in folders:
        yield from (path for path in folder.iterdir() if path.suffix.lower() == ".xml")


def _from_one(box: Corners) -> Corners:
    """Return corners, counted from 1 and both inside, as edges; a box of no extent keeps none.

    The smaller of two corners moves. Swapped corners stay swapped, so that the rule for boxes counts them.
    """
    x1, y1, x2, y2 = box
    if x1 == x2 or y1 == y2:
        return box
    left, right = (x1 - 1, x2) if x1 < x2 else (x1, x2 - 1)
    top, bottom = (y1 - 1, y2) if y1 < y2 else (y1, y2 - 1)
    return left, top, right, bottom


def xml_files(folder: Path, listed: Path | None) -> list[Path]:
    """Return the XML files of a split.

    Args:
        folder: of the XML files.
        listed: the official list of the split; None for all of them.

    Raises:
        DataError: if the list names files that are not there.
    """
    path_of_stem = {path.stem: path for path in sorted(folder.iterdir()) if path.suffix.lower() == ".xml"}
    if listed is None:
        return [*path_of_stem.values()]
    stems: list[str] = []
    for line in lines_of(listed):
        # The lists of single classes have a second column: 1, -1, or 0 for difficult.
        columns = line.rsplit(maxsplit=1)
        has_class_column = len(columns) == 2 and columns[1] in ("1", "0", "-1")
        name = columns[0] if has_class_column else " ".join(columns)
        stems.append(name if name in path_of_stem else PurePosixPath(name.replace("\\", "/")).stem)
    missing = [stem for stem in stems if stem not in path_of_stem]
    if missing:
        raise DataError(f"{listed}: {len(missing)} of {len(stems)} names have no XML file in {folder}: {missing[0]}")
    return [path_of_stem[stem] for stem in dict.fromkeys(stems)]


def _read(path: Path, folder: ImageFolder, *, from_zero: bool) -> tuple[Labelled, int]:
    """Return the picture of an XML file, and how many of its boxes are difficult."""
    root = _root_of(path)
    size = root.find("size")
    width, height = (0.0, 0.0) if size is None else (_number(size, side, path) for side in ("width", "height"))
    boxes: list[tuple[str, Corners]] = []
    num_difficult = 0
    # Some tools put the objects below <objects>: they are looked for at any depth.
    for number, item in enumerate(root.iter("object"), start=1):
        name = (item.findtext("name") or "").strip()
        box = item.find("bndbox")
        if not name or box is None:
            raise DataError(f"{path}: object {number} has no {'bndbox' if name else 'name'}")
        x1, y1, x2, y2 = (_number(box, side, path) for side in ("xmin", "ymin", "xmax", "ymax"))
        corners = (x1, y1, x2, y2)
        boxes.append((name, corners if from_zero else _from_one(corners)))
        num_difficult += (item.findtext("difficult") or "").strip() == "1"
    recorded_size = (int(width), int(height)) if width > 0 and height > 0 else None
    picture_name = _picture_name(path, root.findtext("filename") or "", folder)
    return Labelled(picture_name, recorded_size, boxes), num_difficult


def _root_of(path: Path) -> ET.Element:
    """Return the outermost element of an XML file, its tags made plain; a DataError says why there is none."""
    text = read_text(path)
    # None of VOC's tools writes entities, and nested ones would fill the memory.
    if "<!ENTITY" in text:
        raise DataError(f"{path}: defines entities, expected plain XML")
    # The text is decoded already: its own declaration of an encoding would be wrong now.
    if text.lstrip().startswith("<?xml"):
        text = text.split("?>", 1)[-1].lstrip()
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise DataError(f"{path}: not valid XML ({error})") from None
    _make_plain(root, path)
    return root


def _number(item: ET.Element, name: str, path: Path) -> float:
    text = item.findtext(name) or ""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{path}: {name} is {show(text)}, expected a number")
    return number


def _make_plain(root: ET.Element, path: Path) -> None:
    """Give all tags their plain names in lower case; refuse what is no annotation, or holds boxes outside objects.

    Such a file would otherwise count as a picture without objects.
    """
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2].lower()  # a namespace stands in braces before the name
    if root.tag != "annotation":
        raise DataError(f"{path}: the outermost tag is {show(root.tag)}, expected annotation (Pascal VOC)")
    inside_objects = {id(element) for item in root.iter("object") for element in item.iter()}
    lost_tags = [
        element.tag for element in root.iter() if element.tag in _BOX_TAGS and id(element) not in inside_objects
    ]
    if lost_tags:
        raise DataError(
            f"{path}: {counted(len(lost_tags), 'tag')} of boxes outside an object, the first <{lost_tags[0]}>"
        )


def _picture_name(path: Path, recorded_name: str, folder: ImageFolder) -> str:
    """Return the picture with the name of the XML file: ``filename`` is often from before a renaming."""
    same_stem = folder.by_stem.get(path.stem, [])
    if len(same_stem) == 1:
        return same_stem[0]
    return folder.locate(recorded_name or path.stem)
