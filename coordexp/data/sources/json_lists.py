"""The long lists of a JSON object, cut into stretches that several processes read at once.

Where a stretch may begin is guessed from the text (``}, {`` and the first key of the list's first
entry), and each guess is proved: a stretch counts only if the one before it ends exactly where it
begins. After a wrong guess reading goes on from the proved place. So the result is that of reading
the file from its beginning, for any file and any number of workers.
"""

import os
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from coordexp.data.prepare.workers import Workers
from coordexp.data.sources.json_cursor import JsonCursor, MalformedJsonError, located
from coordexp.data.sources.json_file import kind_of
from coordexp.errors import DataError

STRETCH_BYTES = 8 * 2**20
_OVERLAP_BYTES = 4096  # a separator with its key is not longer

_Rows = TypeVar("_Rows")


@dataclass(frozen=True)
class Stretch:
    """Entries of a list: from the one at byte ``start`` to the first one that begins at ``stop`` or later.

    ``is_first`` says that ``start`` is behind the list's opening bracket, so that there may be none.
    """

    path: Path
    start: int
    stop: int
    is_first: bool = False


@dataclass(frozen=True)
class StretchRows(Generic[_Rows]):
    """What a stretch holds.

    Attributes:
        start: first byte.
        end: the byte behind it; where the next stretch begins.
        closed: whether the list ends here.
        rows: what was made of the entries.
        error: why reading failed, if it did; without meaning if the stretch began at a wrong guess.
    """

    start: int
    end: int
    closed: bool
    rows: _Rows
    error: MalformedJsonError | None


def walk_object(path: Path, on_list: Callable[[str, int], int | None]) -> dict[str, str]:
    """Go through the members of the object a file holds.

    Args:
        path: a JSON file.
        on_list: called with the name and the first byte (behind the bracket) of each member that is
            a list; returns the byte behind the list, or None to have it skipped.

    Returns:
        Name -> kind of each other member.

    Raises:
        DataError: if the file is missing, no JSON (with line and column), or no object.
    """
    others: dict[str, str] = {}
    start = 0
    try:
        while True:  # a new cursor behind each list that on_list has read
            with JsonCursor(path, start) as cursor:
                if start == 0:
                    _open_object(cursor, path)
                found = _next_list(cursor, others, is_first=start == 0)
            if found is None:
                return others
            name, start = found
            start = on_list(name, start) or _skip(path, start)
    except MalformedJsonError as error:
        raise located(error, path) from None


def read_list(
    path: Path,
    start: int,
    read: Callable[[Stretch], StretchRows[_Rows]],
    *,
    workers: Workers,
    stretch_bytes: int = STRETCH_BYTES,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[list[_Rows], int]:
    """Read the list whose first entry may begin at byte ``start``.

    Args:
        path: a JSON file.
        start: the byte behind the opening bracket.
        read: reads a stretch; a function of a module, because it travels to worker processes.
        workers: who reads.
        stretch_bytes: length of a stretch, roughly.
        on_progress: called with the byte that reading has reached.

    Returns:
        The rows of each stretch, in order, and the byte behind the list.

    Raises:
        DataError: if the list is no JSON, with line and column.
    """
    parts: list[_Rows] = []
    while True:
        stretches = workers.map(read, _guessed(path, start, stretch_bytes, is_first=not parts))
        for found in stretches:
            if found.start != start:  # a wrong guess; go on from the proved place
                break
            if found.error is not None:
                raise located(found.error, path)
            parts.append(found.rows)
            start = found.end
            if on_progress is not None:
                on_progress(start)
            if found.closed:
                stretches.close()
                return parts, start
        stretches.close()


def read_stretch(stretch: Stretch, handle: Callable[[object], None]) -> StretchRows[None]:
    """Read the entries of a stretch one by one."""
    with JsonCursor(stretch.path, stretch.start) as cursor:
        error = None
        closed = False
        try:
            closed = stretch.is_first and cursor.take("]")
            while not closed:
                handle(cursor.value())
                closed = cursor.take("]")
                if not closed and not cursor.take(","):
                    raise cursor.fail("',' delimiter")
                cursor.peek()
                if cursor.position >= stretch.stop:
                    break
        except MalformedJsonError as malformed:
            error = malformed
        return StretchRows(start=stretch.start, end=cursor.position, closed=closed, rows=None, error=error)


def _open_object(cursor: JsonCursor, path: Path) -> None:
    if cursor.take("{"):
        return
    kind = "a list" if cursor.peek() == "[" else kind_of(cursor.value())
    raise DataError(f"{path}: the top level is {kind}, expected an object")


def _next_list(cursor: JsonCursor, others: dict[str, str], *, is_first: bool) -> tuple[str, int] | None:
    """Go on to the next member that is a list; None at the end of the object, which must end the file."""
    while True:
        if cursor.take("}"):
            if cursor.peek():
                raise cursor.fail("the end of the file")
            return None
        if not is_first and not cursor.take(","):
            raise cursor.fail("',' delimiter")
        is_first = False
        cursor.peek()
        place = cursor.position
        name = cursor.value()
        if not isinstance(name, str):
            raise MalformedJsonError(place, "Expecting property name enclosed in double quotes")
        if not cursor.take(":"):
            raise cursor.fail("':' delimiter")
        if cursor.take("["):
            return name, cursor.position
        others[name] = kind_of(cursor.value())


def _guessed(path: Path, start: int, stretch_bytes: int, *, is_first: bool) -> Iterator[Stretch]:
    """Yield stretches from ``start`` to the end of the file, which is often behind the end of the list."""
    size = _size(path)
    separator = _separator(path, start)
    while True:  # at least one, also where the file ends: it says what is missing
        stop = next(_places(path, separator, start + stretch_bytes, size, stretch_bytes), size)
        yield Stretch(path, start, stop, is_first)
        if stop >= size:
            return
        start, is_first = stop, False


def _places(path: Path, separator: "re.Pattern[bytes]", at: int, size: int, step: int) -> Generator[int]:
    """Yield where an entry may begin, one place for each ``step`` bytes from ``at`` on."""
    with path.open("rb") as file:
        while at < size:
            text = os.pread(file.fileno(), step + _OVERLAP_BYTES, at)
            match = separator.search(text)
            if match is not None:
                yield at + match.end()
            at += step


def _separator(path: Path, start: int) -> "re.Pattern[bytes]":
    with path.open("rb") as file:
        first = re.match(rb'\s*\{\s*("(?:[^"\\]|\\.)*")', os.pread(file.fileno(), _OVERLAP_BYTES, start))
    key = re.escape(first[1]) if first else b""
    return re.compile(rb"\}\s*,\s*(?=\{\s*" + key + rb")")


def _skip(path: Path, start: int) -> int:
    found = read_stretch(Stretch(path, start, _size(path), is_first=True), lambda _: None)
    if found.error is not None:
        raise found.error
    return found.end


def _size(path: Path) -> int:
    return path.stat().st_size
