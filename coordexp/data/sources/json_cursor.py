"""A place in a JSON file of any size: values are read one after another, and only a window of text is in memory."""

import codecs
import json
import os
from pathlib import Path
from types import TracebackType

from coordexp.errors import DataError

_WINDOW_BYTES = 2**20
_MAX_VALUE_BYTES = 2**28  # a broken record must not draw the rest of the file into memory
_CUT_NUMBER = 2  # "7" followed by a cut ".", "e" or "e+" is no 7 yet
_WHITESPACE = " \t\n\r"
_DECODER = json.JSONDecoder()


class MalformedJsonError(DataError):
    """Text that is no JSON, at a byte offset of its file; :func:`located` turns it into a message.

    Attributes:
        offset: where, in bytes.
        reason: what is wrong there.
    """

    def __init__(self, offset: int, reason: str) -> None:
        """Note where and what."""
        super().__init__(offset, reason)
        self.offset = offset
        self.reason = reason


class JsonCursor:
    """Reads values of a JSON file in their order, from a byte offset on; a context manager."""

    def __init__(self, path: Path, start: int = 0) -> None:
        """Open ``path``.

        Raises:
            DataError: if the file is missing or cannot be read.
        """
        try:
            self._file = path.open("rb")
        except FileNotFoundError:
            raise DataError(f"{path}: file not found") from None
        except OSError as error:
            raise DataError(f"{path}: the file cannot be read ({error.strerror})") from None
        self._path = path
        self._size = os.fstat(self._file.fileno()).st_size
        self._start = start  # of the window, in bytes
        self._end = start  # of the bytes that were read for it
        self._text = ""
        self._at = 0
        self._known = (0, 0)  # a character of the window, and its byte

    @property
    def position(self) -> int:
        """Byte offset of the next character."""
        if self._text.isascii():
            return self._start + self._at
        at, byte = self._known
        self._known = (self._at, byte + len(self._text[at : self._at].encode()))
        return self._start + self._known[1]

    def peek(self) -> str:
        """Return the next character that is no whitespace, without taking it; empty at the end of the file."""
        while True:
            text, at = self._text, self._at
            while at < len(text) and text[at] in _WHITESPACE:
                at += 1
            self._at = at
            if at < len(text):
                return text[at]
            if not self._grow():
                return ""

    def take(self, character: str) -> bool:
        """Take the next character that is no whitespace if it is ``character``, and tell whether it was."""
        found = self.peek() == character
        self._at += found
        return found

    def value(self) -> object:
        """Take the next value.

        Raises:
            MalformedJsonError: if there is none.
        """
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # The text may only be cut here: try again with more of it.
                if not self._grow():
                    raise MalformedJsonError(self._byte(error.pos), error.msg) from None
                continue
            except (ValueError, RecursionError) as error:
                raise MalformedJsonError(self.position, str(error)) from None
            if end + _CUT_NUMBER < len(self._text) or not self._grow():
                self._at = end
                return value

    def fail(self, expected: str) -> MalformedJsonError:
        """Return the error that ``expected`` is not what comes next."""
        return MalformedJsonError(self.position, f"Expecting {expected}")

    def __enter__(self) -> "JsonCursor":
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close the file."""
        self._file.close()

    def _grow(self) -> bool:
        """Move the window to the present place and make it larger; False if that gives no more text."""
        start = self.position
        wanted = max(_WINDOW_BYTES, 2 * (self._end - start))
        if self._end >= self._size or wanted > _MAX_VALUE_BYTES:
            return False
        try:
            content = os.pread(self._file.fileno(), wanted, start)
        except OSError as error:
            raise DataError(f"{self._path}: the file cannot be read ({error.strerror})") from None
        if start + len(content) <= self._end:  # it became shorter under our hands
            return False
        end = start + len(content)
        try:
            text, _ = codecs.utf_8_decode(content, "strict", end >= self._size)  # half a character may be left out
        except UnicodeDecodeError as error:
            raise DataError(f"{self._path}: byte {start + error.start} is not UTF-8; expected a JSON file") from None
        self._start, self._end, self._text = start, end, text
        self._at, self._known = 0, (0, 0)
        return True

    def _byte(self, at: int) -> int:
        return self._start + len(self._text[:at].encode())


def located(error: MalformedJsonError, path: Path) -> DataError:
    """Return the error with the line and column of its place in ``path``."""
    line, column = 1, 1
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with path.open("rb") as file:
        left = error.offset
        while block := file.read(min(left, _WINDOW_BYTES)):
            left -= len(block)
            text = decoder.decode(block, final=left == 0)
            line += text.count("\n")
            line_start = text.rfind("\n")
            column = len(text) - line_start if line_start >= 0 else column + len(text)
    return DataError(f"{path}: line {line} column {column}: not valid JSON ({error.reason}); is the file complete?")
