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
from coordexp.data.sources.yolo.rows import RowLayout, read_row
from coordexp.errors import DataError, counted


@dataclass(frozen=True)
class YoloSource(CocoSource):
    """A split of YOLO's; ``annotations`` and ``images`` are the folder of the whole set."""

    names: tuple[str, ...] = ()  # of the classes
    places: tuple[Path, ...] = ()  # folders of pictures, or lists of them
    layout: RowLayout = "plain"
    is_converted = True

    def file(self) -> CocoFile:
        """Return the entries of all pictures of the split; one without a file of labels has no objects."""
        folder, labels = ImageFolder(self.images), LabelFiles()
        pictures: list[Labelled] = []
        bad: list[str] = []
        names = list(self.names)
        num_without_labels = 0
        picture_names = list(self._pictures(folder))
        read_headers_ahead([folder.root / name for name in picture_names])
        for name in picture_names:
            picture = folder.root / name
            label_file = labels.of(picture)
            num_without_labels += label_file is None
            try:
                lines = [] if label_file is None else lines_of(label_file)
                size = read_header(picture).shown if lines else (1, 1)
            except DataError as error:
                bad.append(str(error))
                continue
            boxes: list[tuple[str, tuple[float, float, float, float]]] = []
            for at, line in enumerate(lines, start=1):
                try:
                    boxes.append(read_row(line, self.names, size, self.layout))
                except DataError as error:
                    bad.append(f"{label_file}: line {at}: {error}")
            names += [desc for desc, _ in boxes if desc not in names]
            pictures.append(Labelled(name, None, boxes))
        notes = [*folder.notes]
        if self.layout == "guessed points":
            notes.append(
                "rows hold key points behind their box, though no kpt_shape says so: the box of columns 2 to 5 is "
                "read, since all points lie in it"
            )
        if num_without_labels:
            notes.append(
                f"no file of labels beside {counted(num_without_labels, 'picture')}: taken as pictures without objects"
            )
        if lost := labels.without_picture():
            notes.append(f"no picture beside {counted(len(lost), 'file')} of labels, the first {lost[0]}: left out")
        file = coco_of(self.annotations, pictures, categories=names, bad=bad, notes=notes)
        return replace(file, has_sizes=False)

    def _pictures(self, folder: ImageFolder) -> Iterator[str]:
        """Yield the pictures of the split, relative to the folder, each once."""
        seen: set[str] = set()
        for place in self.places:
            if place.is_dir():
                there = sorted(path for path in place.rglob("*") if path.suffix.lower() in PICTURES)
                names = [path.relative_to(folder.root).as_posix() for path in there]
            else:
                names = [folder.locate(line) for line in lines_of(place)]
            yield from (name for name in names if name not in seen)
            seen.update(names)
