"""File names from annotations -> paths that are inside the image folder, and exist."""

import os
from pathlib import Path, PurePosixPath

from coordexp.data.json_file import is_text, show
from coordexp.errors import DataError


class ImageFolder:
    """The root of the images of an annotation file.

    Existence is looked up in one listing for each folder: a call for each of 118,000 files takes
    minutes on a network disk.
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
        self._root = root
        self._check = check
        self._names: dict[str, frozenset[str]] = {}

    def path_of(self, name: object) -> Path:
        """Return the path of the image ``name``.

        Raises:
            DataError: if ``name`` is no file name, leaves the folder, or does not exist in it.
        """
        relative = self._relative(name)
        path = self._root / relative
        if self._check and relative.name not in self._listing(str(relative.parent)):
            raise DataError(f"image file {path} not found")
        return path

    def _relative(self, name: object) -> PurePosixPath:
        if not isinstance(name, str) or not is_text(name) or "\0" in name:
            raise DataError(f"the image file name is {show(name)}, expected the name of a file")
        relative = PurePosixPath(name)
        if relative.is_absolute():
            root = PurePosixPath(self._root.absolute())
            if not relative.is_relative_to(root):
                raise DataError(f"the image path {show(name)} leaves the image folder {self._root}")
            relative = relative.relative_to(root)
        if ".." in relative.parts or not relative.name:
            raise DataError(f"the image path {show(name)} leaves the image folder {self._root}")
        return relative

    def _listing(self, folder: str) -> frozenset[str]:
        names = self._names.get(folder)
        if names is None:
            try:
                names = frozenset(os.listdir(self._root / folder))
            except OSError:
                names = frozenset()
            self._names[folder] = names
        return names
