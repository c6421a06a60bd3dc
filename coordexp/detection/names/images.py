"""Images found by their names as other tools write them: in another folder, with other slashes, quoted, or as stems."""

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
            parts = _parts(name)
            stem = _SUFFIX.sub("", parts[-1])
            self._by_stem.setdefault(stem, []).append((parts, image_id))
            if stem.isascii() and stem.isdigit():
                self._by_number.setdefault(int(stem), set()).add(image_id)

    def find(self, name: str) -> int | None:
        """Return the image that shares the longest end of its path with this name; None if none or several do."""
        parts = _parts(name)
        found = self._by_stem.get(parts[-1]) or self._by_stem.get(_SUFFIX.sub("", parts[-1]), [])
        ranked = sorted(((_agreement(parts, own), image_id) for own, image_id in found), reverse=True)
        return ranked[0][1] if len(ranked) == 1 or (ranked and ranked[0][0] > ranked[1][0]) else None

    def numbered(self, number: int) -> int | None:
        """Return the image whose stem is this number, as Ultralytics writes one; None where it is not one image."""
        found = self._by_number.get(number, set())
        return next(iter(found)) if len(found) == 1 else None


def _parts(name: str) -> list[str]:
    """Split a path, a Windows path, a URL or a quoted name, folded, at its slashes."""
    path = urlsplit(name).path if "://" in name else name.rpartition("?d=")[2]  # ?d=: Label Studio's local files
    folded = unicodedata.normalize("NFC", unquote(path)).replace("\\", "/").casefold()
    return [part for part in folded.split("/") if part not in ("", ".")] or [""]


def _agreement(a: list[str], b: list[str]) -> tuple[bool, int]:
    """Return whether the last parts are the same, and how many parts before them are, from the end."""
    same = 0
    for one, other in zip(reversed(a[:-1]), reversed(b[:-1]), strict=False):
        if one != other:
            break
        same += 1
    return a[-1] == b[-1], same
