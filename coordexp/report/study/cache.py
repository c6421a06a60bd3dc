"""What took long to compute, kept beside the report under the hash of everything it was computed from."""

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from coordexp.config.identity.code import PACKAGE, hash_of_sources
from coordexp.errors import CoordExpError
from coordexp.files import JsonValue, sha256_of_file, sha256_of_text, write_json

_T = TypeVar("_T")
# The modules of this package whose results are kept, beside those of statistics/, detection/ and evaluate/.
_COMPUTING = ("analysis.py", "box_parts.py", "breakdown.py", "data.py", "distributions.py", "stored.py")


class StatisticsCache:
    """``statistics.json``: one entry for each part of a report, replaced when its inputs change."""

    def __init__(self, path: Path) -> None:
        """Read what is kept; a damaged file counts as an empty one.

        Args:
            path: the file; written by the first :meth:`get` that has to compute.
        """
        self._path = path
        self._entries: dict[str, dict[str, JsonValue]] = _read(path)

    def get(
        self,
        part: str,
        key: str,
        compute: Callable[[], _T],
        *,
        write: Callable[[_T], JsonValue],
        read: Callable[[JsonValue], _T],
    ) -> _T:
        """Return a part from the file if its key is the same, else compute and keep it.

        Args:
            part: its name in the file.
            key: hash of its inputs, see :func:`content_key`.
            compute: makes it.
            write: makes JSON of it.
            read: the inverse of ``write``.
        """
        entry = self._entries.get(part)
        if entry is not None and entry.get("key") == key and "value" in entry:
            with suppress(CoordExpError, ValueError, TypeError):  # what was kept is damaged: make it again
                return read(entry["value"])
        made = compute()
        self._entries[part] = {"key": key, "value": write(made)}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._path, self._entries, indent=1)
        return made


def content_key(files: Iterable[tuple[str, Path]], settings: object) -> str:
    """Return a hash of named files' bytes, of settings, and of the code that computes.

    Args:
        files: pairs of what a file stands for and the file.
        settings: anything JSON can hold.
    """
    code = [hash_of_sources(PACKAGE / folder) for folder in ("statistics", "detection", "evaluate")]
    code += [sha256_of_file(Path(__file__).with_name(name)) for name in _COMPUTING]
    parts = [[name, sha256_of_file(path)] for name, path in files]
    return sha256_of_text(json.dumps([parts, settings, code], sort_keys=True))


def _read(path: Path) -> dict[str, dict[str, JsonValue]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: entry for name, entry in found.items() if isinstance(entry, dict)} if isinstance(found, dict) else {}
