"""What took long to compute, kept beside the report under the hash of everything it was computed from."""

import functools
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from coordexp.config.identity.code import PACKAGE, hash_of_sources
from coordexp.files import JsonValue, kept_json, sha256_of_file, sha256_of_files, sha256_of_text, write_json

_T = TypeVar("_T")
# The modules of this package whose results are kept, beside those of statistics/, detection/ and evaluate/.
_COMPUTING = ("data.py", "distributions.py", "study.py")


class StatisticsCache:
    """``statistics.json``: one entry for each part of a report, replaced when its inputs change."""

    def __init__(self, path: Path) -> None:
        """Read what is kept; a damaged file counts as an empty one."""
        self._path = path
        found = kept_json(path)
        self._entries: dict[str, JsonValue] = found if isinstance(found, dict) else {}

    def get(self, part: str, key: str, adapter: TypeAdapter[_T], compute: Callable[[], _T]) -> _T:
        """Return a part from the file if its key is the same, else compute and keep it.

        Args:
            part: its name in the file.
            key: hash of its inputs, see :func:`content_key`.
            adapter: of its type.
            compute: makes it.
        """
        entry = self._entries.get(part)
        if isinstance(entry, dict) and entry.get("key") == key:
            with suppress(ValidationError):  # what was kept is damaged: make it again
                return adapter.validate_json(json.dumps(entry.get("value")))
        made = compute()
        self._entries[part] = {"key": key, "value": adapter.dump_python(made, mode="json")}
        write_json(self._path, self._entries, indent=1)
        return made


def content_key(files: Iterable[tuple[str, Path]], settings: object) -> str:
    """Return a hash of named files' bytes, of settings, and of the code that computes.

    Args:
        files: pairs of what a file stands for and the file.
        settings: anything JSON can hold.
    """
    names, paths = zip(*files, strict=True)
    parts = list(zip(names, sha256_of_files(paths), strict=True))
    return sha256_of_text(json.dumps([parts, settings, _code()], sort_keys=True))


@functools.cache
def _code() -> list[str]:
    """Return hashes of the code that computes, which takes a third of a second: it was imported once."""
    code = [hash_of_sources(PACKAGE / folder) for folder in ("statistics", "detection", "evaluate")]
    return code + [sha256_of_file(Path(__file__).with_name(name)) for name in _COMPUTING]
