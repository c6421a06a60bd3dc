"""Images found by their names as other tools write them.

The image ``val/0007.jpg`` of an annotation file may stand in a file of detections as a Windows path in another folder,
as ``https://host/val/0007.jpg``, percent-quoted, as the stem ``0007`` or as the number ``7``.
"""

import re
import unicodedata
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

_SUFFIX = re.compile(r"\.(jpe?g|png|bmp|gif|tiff?|webp|ppm|jp2|avif|json|txt)$")


class ImageNames:
    """The file names of an annotation file, folded; image ids by their stems."""

    def __init__(self, file_names: Mapping[int, str]) -> None:
        self._by_stem: dict[str, list[tuple[list[str], int]]] = {}
        self._by_number: dict[int, set[int]] = {}
        for image_id, name in file_names.items():
            path_parts = _path_parts(name)
            stem = _SUFFIX.sub("", path_parts[-1])
            self._by_stem.setdefault(stem, []).append((path_parts, image_id))
            if stem.isascii() and stem.isdigit():
                self._by_number.setdefault(int(stem), set()).add(image_id)

    def find(self, name: str) -> int | None:
        """Return the image that shares the longest end of its path with this name; None if none or several do."""
        path_parts = _path_parts(name)
        # The name itself first: of a stem with a dot, such as frame.json of frame.json.png, the end is no suffix.
        candidates = self._by_stem.get(path_parts[-1]) or self._by_stem.get(_SUFFIX.sub("", path_parts[-1]), [])
        ranked = sorted(
            ((_agreement(path_parts, image_parts), image_id) for image_parts, image_id in candidates), reverse=True
        )
        if not ranked:
            return None
        best_agreement, best_id = ranked[0]
        is_ambiguous = len(ranked) > 1 and ranked[1][0] == best_agreement
        return None if is_ambiguous else best_id

    def numbered(self, number: int) -> int | None:
        """Return the image whose stem is this number, as Ultralytics writes it; None unless one image has it."""
        image_ids = self._by_number.get(number, set())
        return next(iter(image_ids)) if len(image_ids) == 1 else None


def _path_parts(name: str) -> list[str]:
    """Split a path, a Windows path, a URL or a quoted name, folded, at its slashes."""
    path = urlsplit(name).path if "://" in name else name.rpartition("?d=")[2]  # ?d=: Label Studio's local files
    folded = unicodedata.normalize("NFC", unquote(path)).replace("\\", "/").casefold()
    return [component for component in folded.split("/") if component not in ("", ".")] or [""]


def _agreement(a: list[str], b: list[str]) -> tuple[bool, int]:
    """Return whether the last parts of two paths are the same, and how many parts before them are, from the end."""
    num_same_folders = 0
    for folder_of_a, folder_of_b in zip(reversed(a[:-1]), reversed(b[:-1]), strict=False):
        if folder_of_a != folder_of_b:
            break
        num_same_folders += 1
    return a[-1] == b[-1], num_same_folders
