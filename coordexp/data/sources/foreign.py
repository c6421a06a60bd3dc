"""Data sets in the formats of YOLO and of Pascal VOC: recognised by their files, and the command that converts them.

They are not read: the package ``supervision`` reads both, is kept up by people who do nothing else, and writes COCO's
format. The commands below were tried on drawn folders; ``docs/your-data.md`` shows one.
"""

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from coordexp.errors import DataError

_LOOKED_AT = 50  # files of a folder: one may hold a hundred thousand
_DEPTH = 2  # folders below the one that was named: labels/train, train/labels
# Folders of a data set, from which one goes up to find the whole of it.
_PARTS = {"labels", "images", "annotations", "jpegimages", "imagesets", "main", "train", "val", "valid", "test"}
_SUFFIXES = (".txt", ".xml", ".yaml", ".yml")
_LABEL = re.compile(r"\d+(?: +-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?){4,}")
_XML = re.compile(r"\s*(?:<\?xml[^>]*>\s*)?<annotation\b")


@dataclass(frozen=True)
class ForeignSplit:
    """A part of a data set in another format.

    Attributes:
        name: ``train``, ``val`` ...; "" for a data set in one piece.
        annotations: folder of its label files.
        images: folder of its pictures.
    """

    name: str
    annotations: Path
    images: Path


@dataclass(frozen=True)
class ForeignData:
    """A data set in another format.

    Attributes:
        kind: what people call the format.
        root: its folder.
        splits: its parts.
        names: of YOLO, the YAML file with the names of the categories; None where none was found.
        lists: of VOC, the folder of ``train.txt`` and ``val.txt``; None where there are none.
    """

    kind: str
    root: Path
    splits: tuple[ForeignSplit, ...]
    names: Path | None = None
    lists: Path | None = None

    def commands(self) -> list[str]:
        """Return what turns it into COCO files, one for each part, beside its folders."""
        return ["pip install supervision", f"python -c {shlex.quote(self._program())}"]

    def converted(self, name: str) -> Path:
        """Return the COCO file that the commands write of a part."""
        return self.root / f"instances{f'_{name}' if name else ''}.json"

    def _program(self) -> str:
        lines = ["import supervision as sv"]
        if self.lists is None:
            lines += [
                f"{self._read(part)}.as_coco(annotations_path={_text(self.converted(part.name))})"
                for part in self.splits
            ]
        else:
            lines += [
                "import pathlib",
                f"voc = {self._read(self.splits[0])}",
                'for split in ("train", "val"):',
                f'    names = pathlib.Path({_text(self.lists)}, split + ".txt").read_text().split()',
                "    paths = [path for path in voc.image_paths if pathlib.Path(path).stem in names]",
                "    part = sv.DetectionDataset(voc.classes, paths, {path: voc.annotations[path] for path in paths})",
                f'    part.as_coco(annotations_path={_text(self.root)} + "/instances_" + split + ".json")',
            ]
        return "\n".join(lines)

    def _read(self, part: ForeignSplit) -> str:
        folders = f"{_text(part.images)}, {_text(part.annotations)}"
        if self.kind == "YOLO":
            return f"sv.DetectionDataset.from_yolo({folders}, {_text(self.names or self.root / 'data.yaml')})"
        return f"sv.DetectionDataset.from_pascal_voc({folders})"


def foreign_data(path: Path) -> ForeignData | None:
    """Return the data set of another format that a path belongs to; None where it is none.

    Args:
        path: a folder of it, or a file: a label, an XML file, YOLO's ``data.yaml``.
    """
    if not path.exists():
        return None
    folder = path if path.is_dir() else path.parent
    candidates = [folder]
    while candidates[-1].name.lower() in _PARTS and len(candidates) <= _DEPTH:
        candidates.append(candidates[-1].parent)
    for root in reversed(candidates):
        found = _yolo(root) or _voc(root)
        if found is not None:
            return found
    return None


def refuse_foreign(path: Path) -> None:
    """Refuse, as annotations, a folder or file of a data set in another format; a JSON file is not looked at.

    Raises:
        DataError: with the commands that convert it.
    """
    problem = foreign_problem(path) if path.is_dir() or path.suffix.lower() in _SUFFIXES else None
    if problem is not None:
        raise DataError(problem)


def foreign_problem(path: Path) -> str | None:
    """Return, where a path belongs to a data set of another format, what it is and how it is converted; else None."""
    found = foreign_data(path)
    if found is None:
        return None
    commands = "\n".join(found.commands())
    return (
        f"{found.root} is a data set in the format of {found.kind}; expected COCO's, into which the package "
        f"supervision converts it, in an environment of its own:\n{commands}"
    )


def _yolo(root: Path) -> ForeignData | None:
    splits: list[ForeignSplit] = []
    for folder in folders_below(root):
        inside = folder.relative_to(root).parts
        if "labels" not in inside or not _has(folder, ".txt", _is_label):
            continue
        at = len(inside) - 1 - inside[::-1].index("labels")
        images = root.joinpath(*inside[:at], "images", *inside[at + 1 :])
        name = "_".join((*inside[:at], *inside[at + 1 :]))
        splits.append(ForeignSplit(name, folder, images if images.is_dir() else folder))
    if not splits:
        return None
    names = next(iter(sorted(file for end in ("*.yaml", "*.yml") for file in root.glob(end) if _names(file))), None)
    return ForeignData("YOLO", root, tuple(splits), names=names)


def _voc(root: Path) -> ForeignData | None:
    splits: list[ForeignSplit] = []
    for folder in folders_below(root):
        if not _has(folder, ".xml", _is_voc):
            continue
        beside = [folder.parent / name for name in ("JPEGImages", "images", "Images")]
        images = next((place for place in beside if place.is_dir()), folder)
        inside = folder.relative_to(root).parts
        name = "_".join(part for part in inside if part.lower() not in ("annotations", "jpegimages", "images"))
        splits.append(ForeignSplit(name, folder, images))
    if not splits:
        return None
    lists = root / "ImageSets" / "Main"
    has_lists = len(splits) == 1 and all((lists / f"{name}.txt").is_file() for name in ("train", "val"))
    return ForeignData("Pascal VOC", root, tuple(splits), lists=lists if has_lists else None)


def folders_below(root: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """Yield a folder and those below it, down to a depth, by name; hidden and unreadable ones are passed over."""
    try:
        with os.scandir(root) as entries:
            below = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError:  # of another user, or gone since its name was read
        return
    yield root
    for name in below if depth else ():
        yield from folders_below(root / name, depth - 1)


def _has(folder: Path, suffix: str, is_one: Callable[[Path], bool]) -> bool:
    """Return whether one of the first files of a folder with a suffix is of a format; YOLO's labels may be empty."""
    looked = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(suffix) and entry.is_file():
                if is_one(Path(entry.path)):
                    return True
                looked += 1
                if looked == _LOOKED_AT:
                    return False
    return False


def _is_label(path: Path) -> bool:
    lines = _beginning(path).splitlines()
    return bool(lines) and _LABEL.fullmatch(lines[0].strip()) is not None


def _is_voc(path: Path) -> bool:
    return _XML.match(_beginning(path)) is not None


def _names(path: Path) -> bool:
    return re.search(r"^names\s*:", _beginning(path, 65_536), re.MULTILINE) is not None


def _beginning(path: Path, num: int = 512) -> str:
    with path.open("rb") as file:
        return file.read(num).decode("utf-8", "replace")


def _text(path: Path) -> str:
    return json.dumps(str(path), ensure_ascii=False)  # as Python writes it too
