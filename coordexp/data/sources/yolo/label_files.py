"""The label file of each picture."""

from pathlib import Path

from coordexp.data.sources.yolo.paths import find_in_any_case, inner_folders, pictures_in

# Text files beside labels that belong to no picture.
_NO_LABELS = ("classes", "readme", "train", "val", "valid", "validation", "test", "labels", "names", "notes")
_LEVELS_UP = 6  # from a folder of pictures to the folder that holds ``labels``


class LabelFiles:
    """Finds the label file of a picture: beside it, or in a folder ``labels`` beside one of the picture's folders.

    Ultralytics replaces ``images`` in the path by ``labels``. Converters of Pascal VOC put ``labels`` beside
    ``JPEGImages``. Each folder is listed once. A label file in another case (``A.TXT``) is one, too.
    """

    def __init__(self) -> None:
        self._listings: dict[Path, dict[str, Path]] = {}
        self._label_folders: dict[Path, Path | None] = {}  # by the folder of pictures
        self._picture_folders: dict[Path, set[Path]] = {}  # by the folder of their labels

    def of(self, picture: Path) -> Path | None:
        """Return the label file of a picture; None without one."""
        stem = picture.stem.casefold()
        beside = self._texts(picture.parent).get(stem)
        if beside is not None:
            return beside
        if picture.parent not in self._label_folders:
            self._label_folders[picture.parent] = self._label_folder_of(picture.parent)
        labels = self._label_folders[picture.parent]
        if labels is None:
            return None
        self._picture_folders.setdefault(labels, set()).add(picture.parent)
        return self._texts(labels).get(stem)

    def without_picture(self) -> list[Path]:
        """Return the files in the label folders used so far that belong to no picture."""
        orphans: list[Path] = []
        for labels, picture_folders in sorted(self._picture_folders.items()):
            stems = {path.stem.casefold() for folder in picture_folders for path in pictures_in(folder)}
            texts = self._texts(labels).items()
            orphans += [path for stem, path in texts if stem not in stems and stem not in _NO_LABELS]
        return orphans

    def _texts(self, folder: Path) -> dict[str, Path]:
        """Return the text files of a folder by their folded stems.

        Links that lead nowhere are among them: reading such a file says so, and its picture is not taken for one
        without objects.
        """
        if folder not in self._listings:
            paths = sorted(folder.iterdir()) if folder.is_dir() else []
            self._listings[folder] = {path.stem.casefold(): path for path in paths if path.suffix.lower() == ".txt"}
        return self._listings[folder]

    def _label_folder_of(self, pictures: Path) -> Path | None:
        """Return the label folder of a folder of pictures: the same path, with ``labels`` in the place of one part."""
        components = pictures.parts
        highest = max(0, len(components) - 1 - _LEVELS_UP)
        for replaced in range(len(components) - 1, highest, -1):
            above = Path(*components[:replaced])
            for labels in inner_folders(above, "labels"):
                place = find_in_any_case(labels, components[replaced + 1 :])
                if place is not None and self._texts(place):
                    return place
        return None
