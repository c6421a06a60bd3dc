"""A split of YOLO's labels."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from coordexp.data.coco.file import CocoFile
from coordexp.data.images.folder import PICTURES, ImageFolder
from coordexp.data.images.headers import read_header, read_headers_ahead
from coordexp.data.sources.coco.source import CocoSource
from coordexp.data.sources.labelled import Labelled, coco_of
from coordexp.data.sources.text_file import lines_of
from coordexp.data.sources.yolo.label_files import LabelFiles
from coordexp.data.sources.yolo.rows import Corners, RowLayout, read_row
from coordexp.errors import DataError, counted


@dataclass(frozen=True)
class YoloSource(CocoSource):
    """A split of YOLO's; ``annotations`` and ``images`` are the folder of the whole set.

    Attributes:
        names: of the classes.
        places: folders of the split's pictures, or lists of them.
        layout: what a row holds.
    """

    names: tuple[str, ...] = ()
    places: tuple[Path, ...] = ()
    layout: RowLayout = "plain"
    is_converted = True

    def file(self) -> CocoFile:
        """Return the entries of all pictures of the split; a picture without a label file has no objects."""
        folder = ImageFolder(self.images)
        labels = LabelFiles()
        pictures: list[Labelled] = []
        bad: list[str] = []
        names = list(self.names)
        num_without_labels = 0
        picture_names = list(self._picture_names(folder))
        read_headers_ahead([folder.root / name for name in picture_names])
        for name in picture_names:
            picture = folder.root / name
            label_file = labels.of(picture)
            num_without_labels += label_file is None
            try:
                lines = [] if label_file is None else lines_of(label_file)
                # Without objects, the size is measured later, where it is needed.
                size = read_header(picture).shown if lines else (1, 1)
            except DataError as error:
                bad.append(str(error))
                continue
            boxes: list[tuple[str, Corners]] = []
            for number, line in enumerate(lines, start=1):
                try:
                    boxes.append(read_row(line, self.names, size, self.layout))
                except DataError as error:
                    bad.append(f"{label_file}: line {number}: {error}")
            names += [desc for desc, _ in boxes if desc not in names]
            pictures.append(Labelled(name, None, boxes))
        notes = [*folder.notes, *self._notes(num_without_labels, labels.without_picture())]
        file = coco_of(self.annotations, pictures, categories=names, bad=bad, notes=notes)
        return replace(file, has_sizes=False)

    def _notes(self, num_without_labels: int, orphans: list[Path]) -> list[str]:
        """Return what was guessed and passed over, a sentence each.

        Args:
            num_without_labels: pictures without a label file.
            orphans: label files without a picture.
        """
        notes: list[str] = []
        if self.layout == "guessed points":
            notes.append(
                "rows hold key points behind their box, though no kpt_shape says so: the box of columns 2 to 5 is "
                "read, since all points lie in it"
            )
        if num_without_labels:
            num_pictures = counted(num_without_labels, "picture")
            notes.append(f"no file of labels beside {num_pictures}: taken as pictures without objects")
        if orphans:
            num_files = counted(len(orphans), "file")
            notes.append(f"no picture beside {num_files} of labels, the first {orphans[0]}: left out")
        return notes

    def _picture_names(self, folder: ImageFolder) -> Iterator[str]:
        """Yield the pictures of the split, relative to the folder, without those of earlier places."""
        seen: set[str] = set()
        for place in self.places:
            if place.is_dir():
                paths = sorted(path for path in place.rglob("*") if path.suffix.lower() in PICTURES)
                names = [path.relative_to(folder.root).as_posix() for path in paths]
            else:
                names = [folder.locate(line) for line in lines_of(place)]
            yield from (name for name in names if name not in seen)
            seen.update(names)
