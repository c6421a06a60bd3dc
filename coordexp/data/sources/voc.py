"""Pascal VOC: an XML file a picture, in ``Annotations`` or beside the pictures.

Corners are whole pixels counted from 1, both inside the box, as VOC's own devkit has them: the box reaches from
``xmin - 1`` to ``xmax``. Tools that count from 0 give themselves away by a corner of 0 or a fraction.
"""

import math
import re
import xml.etree.ElementTree as ET
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
    """A split of Pascal VOC; ``annotations`` is the folder of its XML files."""

    listed: Path | None = None  # the official list of the split, a name a line; None for every XML file of the folder
    every: tuple[Path, ...] = ()  # folders of the XML files of all splits, which count alike
    is_converted = True

    def file(self) -> CocoFile:
        folder = ImageFolder(self.images)
        bad: list[str] = []
        found: list[Labelled] = []
        num_difficult = 0
        paths = xml_files(self.annotations, self.listed)
        from_zero = _count_from_zero(self.every or (self.annotations,))
        for path in paths:
            try:
                picture, difficult = _read(path, folder, from_zero=from_zero)
            except DataError as error:
                bad.append(str(error))
            else:
                found.append(picture)
                num_difficult += difficult
        notes = ["corners count from 0, since one of them is 0 or a fraction"] if from_zero else []
        if num_difficult:
            notes.append(f"difficult by their own word: {counted(num_difficult, 'box')}, taken as all others")
        return coco_of(self.annotations, found, bad=bad, notes=[*notes, *folder.notes])


@lru_cache(maxsize=16)
def _count_from_zero(folders: tuple[Path, ...]) -> bool:
    """Return whether a box that has extent has a corner of 0, or a fraction: VOC's own have neither."""
    for path in (path for folder in folders for path in folder.iterdir() if path.suffix.lower() == ".xml"):
        for box in re.findall(r"<bndbox>(.*?)</bndbox>", read_text(path), re.DOTALL | re.IGNORECASE):
            numbers = re.findall(r"<([xy]m\w+)>\s*(-?\d+\.?\d*)\s*</", box, re.IGNORECASE)
            sides = {name.lower(): float(value) for name, value in numbers}
            is_box = len(sides) == 4 and sides["xmin"] != sides["xmax"] and sides["ymin"] != sides["ymax"]
            if is_box and (min(sides.values()) == 0 or any(value % 1 for value in sides.values())):
                return True
    return False


def _from_one(box: Corners) -> Corners:
    """Return corners, counted from 1 and both inside, as edges; a box of no extent keeps none.

    The smaller of two corners moves: the corners stay swapped where they are, so that the rule for boxes counts them.
    """
    x1, y1, x2, y2 = box
    if x1 == x2 or y1 == y2:
        return box
    left, right = (x1 - 1, x2) if x1 < x2 else (x1, x2 - 1)
    top, bottom = (y1 - 1, y2) if y1 < y2 else (y1, y2 - 1)
    return left, top, right, bottom


def xml_files(folder: Path, listed: Path | None) -> list[Path]:
    there = {path.stem: path for path in sorted(folder.iterdir()) if path.suffix.lower() == ".xml"}
    if listed is None:
        return [*there.values()]
    # Lists by class have a second column: 1, -1, or 0 for difficult.
    rows = [line.rsplit(maxsplit=1) for line in lines_of(listed)]
    names = [row[0] if len(row) == 2 and row[1] in ("1", "0", "-1") else " ".join(row) for row in rows]
    stems = [name if name in there else PurePosixPath(name.replace("\\", "/")).stem for name in names]
    missing = [stem for stem in stems if stem not in there]
    if missing:
        raise DataError(f"{listed}: {len(missing)} of {len(stems)} names have no XML file in {folder}: {missing[0]}")
    return [there[stem] for stem in dict.fromkeys(stems)]


def _read(path: Path, folder: ImageFolder, *, from_zero: bool) -> tuple[Labelled, int]:
    """Return the picture of an XML file, and how many of its boxes are difficult."""
    text = read_text(path)
    if "<!ENTITY" in text:  # none of VOC's tools writes entities, and nested ones fill the memory
        raise DataError(f"{path}: defines entities, expected plain XML")
    try:
        root = ET.fromstring(text.split("?>", 1)[-1].lstrip() if text.lstrip().startswith("<?xml") else text)
    except ET.ParseError as error:
        raise DataError(f"{path}: not valid XML ({error})") from None
    _tidy(root, path)
    size = root.find("size")
    width, height = (0.0, 0.0) if size is None else (_number(size, side, path) for side in ("width", "height"))
    boxes: list[tuple[str, Corners]] = []
    objects = list(root.iter("object"))  # some tools put them below <objects>
    for at, item in enumerate(objects, start=1):
        name, box = (item.findtext("name") or "").strip(), item.find("bndbox")
        if not name or box is None:
            raise DataError(f"{path}: object {at} has no {'bndbox' if name else 'name'}")
        x1, y1, x2, y2 = (_number(box, side, path) for side in ("xmin", "ymin", "xmax", "ymax"))
        boxes.append((name, (x1, y1, x2, y2) if from_zero else _from_one((x1, y1, x2, y2))))
    recorded = (int(width), int(height)) if width > 0 and height > 0 else None
    num_difficult = sum((item.findtext("difficult") or "").strip() == "1" for item in objects)
    return Labelled(_picture(path, root.findtext("filename") or "", folder), recorded, boxes), num_difficult


def _number(item: ET.Element, name: str, path: Path) -> float:
    text = item.findtext(name) or ""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{path}: {name} is {show(text)}, expected a number")
    return number


def _tidy(root: ET.Element, path: Path) -> None:
    """Give all tags their plain names in lower case; refuse what is no annotation, or holds boxes outside objects.

    Such a file would otherwise count as a picture without objects.
    """
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2].lower()  # a namespace stands in braces
    if root.tag != "annotation":
        raise DataError(f"{path}: the outermost tag is {show(root.tag)}, expected annotation (Pascal VOC)")
    inside = {id(element) for item in root.iter("object") for element in item.iter()}
    lost = [element.tag for element in root.iter() if element.tag in _BOX_TAGS and id(element) not in inside]
    if lost:
        raise DataError(f"{path}: {counted(len(lost), 'tag')} of boxes outside an object, the first <{lost[0]}>")


def _picture(path: Path, written: str, folder: ImageFolder) -> str:
    """Return the picture of an XML file: that of its own name, since ``filename`` is often from before a renaming."""
    beside = folder.by_stem.get(path.stem, [])
    if len(beside) == 1:
        return beside[0]
    return folder.locate(written or path.stem)
