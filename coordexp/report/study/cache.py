"""What took long to compute, kept beside the report under the hash of everything it was computed from."""

import functools
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from coordexp.config.identity.code import PACKAGE, hash_of_sources
from coordexp.errors import CoordExpError, DataError
from coordexp.files import JsonValue, kept_json, sha256_of_file, sha256_of_files, sha256_of_text, write_json
from coordexp.statistics.results import Comparison, Convergence, CurvePoint, Decomposition, Estimate, from_json, to_json

_T = TypeVar("_T")
# The modules of this package whose results are kept, beside those of statistics/, detection/ and evaluate/.
_COMPUTING = ("answers.py", "cache.py", "data.py", "distributions.py", "study.py")
_Parts = tuple[
    dict[str, tuple[CurvePoint, ...]],
    dict[str, Estimate],
    list[tuple[str, str, Estimate]],
    list[tuple[float, str, Estimate | None]],
    list[tuple[float, str, str, Estimate]],
]
_PARTS: TypeAdapter[_Parts] = TypeAdapter(_Parts)
_DECOMPOSITION = TypeAdapter(Decomposition)


class StatisticsCache:
    """``statistics.json``: one entry for each part of a report, replaced when its inputs change."""

    def __init__(self, path: Path) -> None:
        """Read what is kept; a damaged file counts as an empty one.

        Args:
            path: the file; written by the first :meth:`get` that has to compute.
        """
        self._path = path
        self._entries: dict[str, dict[str, JsonValue]] = _read(path)
        self._lock = threading.Lock()

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
        with self._lock:
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
    names, paths = zip(*files, strict=True)
    parts = list(zip(names, sha256_of_files(paths), strict=True))
    return sha256_of_text(json.dumps([parts, settings, _code()], sort_keys=True))


@functools.cache
def _code() -> list[str]:
    """Return hashes of the code that computes, which takes a third of a second: it was imported once."""
    code = [hash_of_sources(PACKAGE / folder) for folder in ("statistics", "detection", "evaluate")]
    return code + [sha256_of_file(Path(__file__).with_name(name)) for name in _COMPUTING]


def _read(path: Path) -> dict[str, dict[str, JsonValue]]:
    found = kept_json(path)
    return {name: entry for name, entry in found.items() if isinstance(entry, dict)} if isinstance(found, dict) else {}


def comparisons_json(comparisons: Mapping[str, Comparison]) -> JsonValue:
    """Return comparisons by name as a JSON value."""
    return {name: json.loads(to_json(comparison)) for name, comparison in comparisons.items()}


def comparisons_of(value: JsonValue) -> dict[str, Comparison]:
    """Read what :func:`comparisons_json` made.

    Raises:
        DataError: if it is something else.
    """
    if not isinstance(value, dict):
        raise DataError(f"not stored comparisons by name: {value!r}")
    return {name: from_json(json.dumps(found)) for name, found in value.items()}


def convergence_json(found: Convergence) -> JsonValue:
    """Return a convergence as a JSON value; pairs, which JSON has no keys for, become lists."""
    parts: _Parts = (
        dict(found.curves),
        dict(found.area),
        [(a, b, value) for (a, b), value in found.area_difference.items()],
        [(fraction, group, value) for fraction, groups in found.steps_to.items() for group, value in groups.items()],
        [
            (fraction, a, b, value)
            for fraction, pairs in found.steps_to_difference.items()
            for (a, b), value in pairs.items()
        ],
    )
    return _PARTS.dump_python(parts, mode="json")


def convergence_of(value: JsonValue) -> Convergence:
    """Read what :func:`convergence_json` made."""
    # Through JSON text: its tuples are lists, which Python objects may not stand in for.
    curves, area, area_difference, steps_to, steps_to_difference = _PARTS.validate_json(json.dumps(value))
    reached: dict[float, dict[str, Estimate | None]] = {}
    for fraction, group, estimate in steps_to:
        reached.setdefault(fraction, {})[group] = estimate
    differences: dict[float, dict[tuple[str, str], Estimate]] = {fraction: {} for fraction in reached}
    for fraction, a, b, difference in steps_to_difference:
        differences.setdefault(fraction, {})[a, b] = difference
    return Convergence(
        curves=curves,
        area=area,
        area_difference={(a, b): difference for a, b, difference in area_difference},
        steps_to=reached,
        steps_to_difference=differences,
    )


def decomposition_json(found: Decomposition) -> JsonValue:
    """Return a decomposition as a JSON value."""
    return _DECOMPOSITION.dump_python(found, mode="json")


def decomposition_of(value: JsonValue) -> Decomposition:
    """Read what :func:`decomposition_json` made."""
    return _DECOMPOSITION.validate_json(json.dumps(value))
