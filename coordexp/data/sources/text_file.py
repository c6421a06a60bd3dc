"""Text files of labels, whatever their encoding."""

import re
from pathlib import Path

from coordexp.errors import DataError
from coordexp.files import is_lfs_pointer, lfs_problem

_DECLARED_ENCODING = re.compile(rb"\s*<\?xml[^>]*encoding=[\"']([A-Za-z][\w.-]*)[\"']")


def read_text(path: Path) -> str:
    """Return the text of a file of labels without a byte-order mark, its lines ended by a line feed.

    Raises:
        DataError: if the file cannot be read, is a Git LFS pointer, or is no text.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read ({error.strerror})") from None
    if is_lfs_pointer(content):
        raise DataError(lfs_problem(path))
    has_utf16_mark = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    encodings = ["utf-16"] if has_utf16_mark else ["utf-8-sig", "cp1252"]
    declared = _DECLARED_ENCODING.match(content)
    if declared is not None:
        encodings.insert(0, declared[1].decode("ascii"))
    for encoding in encodings:
        try:
            return content.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
        except (UnicodeDecodeError, LookupError):
            continue
    raise DataError(f"{path}: not text in UTF-8; expected a file of labels")


def lines_of(path: Path) -> list[str]:
    """Return the lines of a text file without white space around them; blank lines are left out."""
    return [line.strip() for line in read_text(path).split("\n") if line.strip()]
