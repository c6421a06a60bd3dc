"""Headers of pictures: each file opened once, and many files at a time."""

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from coordexp.data.images.files import Header, header_of, opened_picture
from coordexp.errors import DataError
from coordexp.stages import report_stage

# Formats without a place for EXIF. The file's name tells them, so that the file is not opened to look.
_WITHOUT_EXIF = (".bmp", ".gif", ".ppm")
# Headers are read by several threads at once: a network disk would answer one request after the other.
_HEADER_READERS = 8
_HEADERS_OF_A_TASK = 64


@dataclass
class _KeptHeaders:
    """The headers that :func:`headers_once` keeps; None outside of its block, since a picture may change."""

    headers: dict[Path, "Header | DataError"] | None = None


_kept_headers = _KeptHeaders()


@contextmanager
def headers_once() -> Generator[None]:
    """Open each picture once while the block runs, however often its header is asked for."""
    _kept_headers.headers = {}
    try:
        yield
    finally:
        _kept_headers.headers = None


def read_header(path: Path) -> Header:
    """Return the header of an image file; within :func:`headers_once`, a file is opened once.

    Raises:
        DataError: if the file is missing, is no picture, or is too large.
    """
    headers = _kept_headers.headers
    if headers is None:
        return _read_header(path)
    if path not in headers:
        # A failure is kept as well: a missing file on a network disk takes as long as one that is there.
        try:
            headers[path] = _read_header(path)
        except DataError as error:
            headers[path] = error
    header = headers[path]
    if isinstance(header, DataError):
        raise DataError(str(header))
    return header


def _read_header(path: Path) -> Header:
    with opened_picture(path) as picture:
        return header_of(picture, path)


def read_headers_ahead(paths: Sequence[Path]) -> None:
    """Read headers in parallel, for a reader that then asks for one after the other within :func:`headers_once`.

    Errors are kept, and raised when the reader asks for the header.
    """
    if _kept_headers.headers is not None:
        turned_headers(paths)


def turned_headers(paths: Sequence[Path]) -> dict[int, Header]:
    """Return the headers of the pictures that a viewer turns, by their index in ``paths``; none for bad files."""

    def headers_of(batch: Sequence[Path]) -> list[Header | None]:
        headers: list[Header | None] = []
        for path in batch:
            header = None
            if path.suffix.lower() not in _WITHOUT_EXIF:
                with suppress(DataError):  # reported when the picture is used
                    header = read_header(path)
            headers.append(header)
        return headers

    turned: dict[int, Header] = {}
    num_done = 0
    # One task reads many headers: handing over a task takes as long as reading a header.
    batches = [paths[start : start + _HEADERS_OF_A_TASK] for start in range(0, len(paths), _HEADERS_OF_A_TASK)]
    with ThreadPoolExecutor(_HEADER_READERS) as pool:
        for headers in pool.map(headers_of, batches):
            for index, header in enumerate(headers, start=num_done):
                if header is not None and header.orientation != 1:
                    turned[index] = header
            num_done += len(headers)
            report_stage("headers of pictures read", num_done, len(paths))
    return turned
