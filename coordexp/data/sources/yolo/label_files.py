"""The label file of each picture."""

from pathlib import Path

from coordexp.data.sources.yolo.paths import find_in_any_case, inner_folders, pictures_in

_NO_LABELS = ("classes", "readme", "train", "val", "valid", "validation", "test", "labels", "names", "notes")
_LEVELS_UP = 6  # from a folder of pictures to the one that has its labels


class LabelFiles:
    """Finds the file of labels of a picture: beside it, or in a folder ``labels`` beside one of the picture's folders.

    Ultralytics replaces ``images`` in the path by ``labels``; converters of Pascal VOC put ``labels`` beside
    ``JPEGImages``. Each folder is listed once. A file of labels in another case (``A.TXT``) is one, too.
    """

    def __init__(self) -> None:
        self._listings: dict[Path, dict[str, Path]] = {}
        self._folders: dict[Path, Path | None] = {}
        self._picture_folders: dict[Path, set[Path]] = {}  # by the folder of their labels

    def of(self, picture: Path) -> Path | None:
        """Return the file of labels of a picture; None without one."""
        stem = picture.stem.casefold()
        beside = self._texts(picture.parent).get(stem)
        if beside is not None:
            return beside
        if picture.parent not in self._folders:
            self._folders[picture.parent] = self._folder_of(picture.parent)
        folder = self._folders[picture.parent]
        if folder is None:
            return None
        self._picture_folders.setdefault(folder, set()).add(picture.parent)
        return self._texts(folder).get(stem)

    def without_picture(self) -> list[Path]:
        """Return the files, in the folders of labels that were used, beside which there is no picture."""
        lost: list[Path] = []
        for labels, picture_folders in sorted(self._picture_folders.items()):
            stems = {path.stem.casefold() for folder in picture_folders for path in pictures_in(folder)}
            texts = self._texts(labels).items()
            lost += [path for stem, path in texts if stem not in stems and stem not in _NO_LABELS]
        return lost

    def _texts(self, folder: Path) -> dict[str, Path]:
        """Return the text files of a folder by their folded stems: also links that lead nowhere, to be named."""
        if folder not in self._listings:
            paths = sorted(folder.iterdir()) if folder.is_dir() else []
            self._listings[folder] = {path.stem.casefold(): path for path in paths if path.suffix.lower() == ".txt"}
        return self._listings[folder]

    def _folder_of(self, pictures: Path) -> Path | None:
        """Return the folder of the labels of a folder of pictures: one part of its path is ``labels`` there."""
        parts = pictures.parts
        for at in range(len(parts) - 1, max(0, len(parts) - 1 - _LEVELS_UP), -1):
            above = Path(*parts[:at])
            for labels in inner_folders(above, "labels"):
                place = find_in_any_case(labels, parts[at + 1 :])
                if place is not None and self._texts(place):
                    return place
        return None
