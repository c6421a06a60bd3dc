"""Headers of pictures, each read once and many at a time."""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from coordexp.data.images.files import Header, header_of, opened_picture
from coordexp.errors import DataError

# Formats without a place for EXIF; by the name of the file, so that it is not opened to look.
_WITHOUT_EXIF = (".bmp", ".gif", ".ppm")
# Headers read at once, so that a disk elsewhere does not answer one after the other.
_HEADER_READERS = 8
_HEADERS_OF_A_TASK = 64
OnHeaders = Callable[[int, int], None]
"""Called with how many headers are read, and of how many."""


def read_header(path: Path) -> Header:
    """Return what an image file says before its pixels; within :func:`headers_once`, a file is opened once.

    Raises:
        DataError: if the file is missing, is no picture, or is too large.
    """
    kept = _kept_headers.headers
    if kept is None:
        return _read_header(path)
    if path not in kept:
        try:
            kept[path] = _read_header(path)
        except DataError as error:
            kept[path] = error
    known = kept[path]
    if isinstance(known, DataError):
        raise DataError(str(known))
    return known


def _read_header(path: Path) -> Header:
    with opened_picture(path) as picture:
        return header_of(picture, path)


@dataclass
class _KeptHeaders:
    """What :func:`headers_once` keeps: nothing outside of it, since a picture may change."""

    headers: dict[Path, "Header | DataError"] | None = None
    on_headers: OnHeaders | None = None


_kept_headers = _KeptHeaders()


@contextmanager
def headers_once(on_headers: OnHeaders | None = None) -> Generator[None]:
    """Open each picture once while the block runs, however often its header is asked for.

    ``on_headers`` is called with how many headers of a set are read, and of how many, now and then.
    """
    _kept_headers.headers, _kept_headers.on_headers = {}, on_headers
    try:
        yield
    finally:
        _kept_headers.headers, _kept_headers.on_headers = None, None


def read_headers_ahead(paths: Sequence[Path]) -> None:
    """Read headers several at once, for a reader that asks for one after the other (only in :func:`headers_once`)."""
    if _kept_headers.headers is not None:
        turned_headers(paths)


def turned_headers(paths: Sequence[Path]) -> dict[int, Header]:
    """Return the headers of the readable pictures that a viewer turns or mirrors, by their place."""

    def headers_of(batch: Sequence[Path]) -> list[Header | None]:
        headers: list[Header | None] = []
        for path in batch:
            header = None
            if path.suffix.lower() not in _WITHOUT_EXIF:
                with suppress(DataError):  # said where the picture is used
                    header = read_header(path)
            headers.append(header)
        return headers

    turned: dict[int, Header] = {}
    report, done = _kept_headers.on_headers, 0
    # A task for many pictures: handing one over takes as long as reading a header.
    batches = [paths[start : start + _HEADERS_OF_A_TASK] for start in range(0, len(paths), _HEADERS_OF_A_TASK)]
    with ThreadPoolExecutor(_HEADER_READERS) as pool:
        for headers in pool.map(headers_of, batches):
            for place, header in enumerate(headers, start=done):
                if header is not None and header.orientation != 1:
                    turned[place] = header
            done += len(headers)
            if report is not None:
                report(done, len(paths))
    return turned
