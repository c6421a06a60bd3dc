"""File names from annotations -> paths that are inside the image folder, and exist."""

import os
from pathlib import Path, PurePosixPath

from coordexp.errors import DataError, is_text, show


class ImageFolder:
    """The root of the images of an annotation file.

    Existence is looked up in one listing for each folder: a call for each of 118,000 files takes
    minutes on a network disk. A link is followed, and refused where it leaves the root (the root
    itself may be a link).
    """

    def __init__(self, root: Path, *, check: bool = True) -> None:
        """Open ``root``.

        Args:
            root: image folder.
            check: whether files must exist.

        Raises:
            DataError: if ``root`` must exist and is no folder.
        """
        if check and not root.is_dir():
            raise DataError(f"{root}: no such image folder")
        self.root = root
        self._real_root = os.path.realpath(root)
        self._check = check
        self._listings: dict[str, dict[str, bool]] = {}

    def path_of(self, name: object) -> Path:
        """Return the path of the image ``name``.

        Raises:
            DataError: if ``name`` is no file name, leaves the folder, or does not exist in it.
        """
        relative = self.relative_name(name)
        self.find(relative)
        return self.root / relative

    def relative_name(self, name: object) -> str:
        """Return an image's name relative to the folder, without looking at the disk.

        Args:
            name: what an annotation says: relative to the folder, or absolute and inside.

        Raises:
            DataError: if ``name`` is no file name, or leaves the folder.
        """
        if not isinstance(name, str) or not is_text(name) or "\0" in name:
            raise DataError(f"the image file name is {show(name)}, expected the name of a file")
        if "/" not in name and name not in {".", ".."}:
            return name
        relative = PurePosixPath(name)
        if relative.is_absolute():
            absolute_root = PurePosixPath(self.root.absolute())
            if not relative.is_relative_to(absolute_root):
                raise DataError(f"the image path {show(name)} leaves the image folder {self.root}")
            relative = relative.relative_to(absolute_root)
        if ".." in relative.parts or not relative.name:
            raise DataError(f"the image path {show(name)} leaves the image folder {self.root}")
        return relative.as_posix()

    def find(self, relative: str) -> None:
        """Look up a name that :func:`relative_name` returned.

        Raises:
            DataError: if there is no such file, or it is a link that leaves the folder.
        """
        if not self._check:
            return
        folder, _, name = relative.rpartition("/")
        is_link = self._listing(folder).get(name)
        if is_link is None:
            raise DataError(f"image file {self.root / relative} not found")
        if is_link and not self._is_inside(os.path.realpath(self.root / relative)):
            raise DataError(f"the image {self.root / relative} is a link that leaves the image folder")

    def _listing(self, folder: str) -> dict[str, bool]:
        """Return the names in a folder, and whether each is a link."""
        names = self._listings.get(folder)
        if names is None:
            place = self.root / folder
            if not self._is_inside(os.path.realpath(place)):
                raise DataError(f"the image folder {place} is a link that leaves {self.root}")
            try:
                with os.scandir(place) as entries:
                    names = {entry.name: entry.is_symlink() for entry in entries}
            except OSError:
                names = {}
            self._listings[folder] = names
        return names

    def _is_inside(self, real_path: str) -> bool:
        return PurePosixPath(real_path).is_relative_to(self._real_root)
