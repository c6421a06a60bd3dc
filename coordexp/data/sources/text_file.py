"""Text files of labels, whatever their encoding."""

import re
from pathlib import Path

from coordexp.errors import DataError
from coordexp.files import is_lfs_pointer, lfs_problem

_DECLARED = re.compile(rb"\s*<\?xml[^>]*encoding=[\"']([A-Za-z][\w.-]*)[\"']")


def read_text(path: Path) -> str:
    """Return the text of a file of labels, with or without a byte-order mark, its lines ended by a line feed.

    Raises:
        DataError: if it cannot be read, or is no text.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read ({error.strerror})") from None
    if is_lfs_pointer(content):
        raise DataError(lfs_problem(path))
    encodings = ["utf-16"] if content[:2] in (b"\xff\xfe", b"\xfe\xff") else ["utf-8-sig", "cp1252"]
    declared = _DECLARED.match(content)
    if declared is not None:
        encodings.insert(0, declared[1].decode("ascii"))
    for encoding in encodings:
        try:
            return content.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
        except (UnicodeDecodeError, LookupError):
            continue
    raise DataError(f"{path}: not text in UTF-8; expected a file of labels")


def lines_of(path: Path) -> list[str]:
    return [line.strip() for line in read_text(path).split("\n") if line.strip()]
