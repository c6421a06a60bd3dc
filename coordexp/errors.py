"""The errors that a user can cause: one root, and one class for each kind of input. And how values appear in them."""

import difflib
import re
import reprlib
from collections.abc import Generator, Iterable

# User and password of an address. Some texts are paths that were made of an address, with one slash instead of two. A
# database's file (sqlite:///) has no user, and USER:PASSWORD is the placeholder of our own sentences.
_USER = re.compile(
    r"(\b(?!sqlite\b)[A-Za-z][\w+.-]*:/{1,2}(?!/)|sqlite://(?!/)|(?<![\w:/.])//)(?!USER:PASSWORD@)"
    r"(?:(?![\s'\"=][A-Za-z][\w+.-]*:/)[^\n])*@"
)
_QUERY = re.compile(r"(:/{1,2}[^\s?#'\"]*[?#])(?!/experiments)[^\s'\"]+")
# user:password@host without a scheme.
_USER_ALONE = re.compile(r"(?<![\w/*.-])[^\s:/@'\"=({\[,]+:(?!/|PASSWORD@)[^\s@]+@")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")  # UTF-8 cannot write it
_KINDS: dict[type, str] = {bool: "true or false", int: "a number", float: "a number", str: "text", dict: "an object"}
_MAX_LINE = 500  # letters of a line in a message
_MAX_LINES = 50  # a table of differences has 30


class _MaskingRepr(reprlib.Repr):
    """Masks secrets before it shortens, because half an address is not recognised as one."""

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(masked(x), level)


_REPR = _MaskingRepr()
_REPR.maxstring = 60
_REPR.maxother = 60
_REPR.maxlong = 60


class CoordExpError(ValueError):
    """Input that coordexp cannot work with. The message says what is wrong, where, and what was expected."""

    def __str__(self) -> str:
        return shortened(super().__str__())


class ConfigError(CoordExpError):
    """A configuration file, key or value is wrong."""


class TokenizerError(CoordExpError):
    """A tokenizer lacks a token, or gives one another id than expected."""


class DataError(CoordExpError):
    """An annotation file, record, box or image is wrong."""


class CheckpointError(CoordExpError):
    """A checkpoint is missing, damaged or of another model."""


class ComparisonError(CoordExpError):
    """Runs differ in more than the declared factor."""


class TrackingError(CoordExpError):
    """The tracking server or its database cannot be used."""


class ResourceError(CoordExpError):
    """The machine or the cluster lacks what a run asks for (CPUs, GPUs, disk)."""


class TrainingError(CoordExpError):
    """Training failed in a way that more steps cannot repair (a non-finite loss)."""


class DivergedError(TrainingError):
    """Loss or gradients stopped being finite; every rank raises it at the same step."""


def masked(text: str) -> str:
    """Return text in which no address has a user, a password, a query or a fragment.

    A password may hold a space. So everything between the scheme of an address and its last ``@`` is masked, even if
    ordinary words are lost with it.
    """
    without_users = _USER.sub(r"\1***@", text)
    without_queries = _QUERY.sub(r"\1***", without_users)
    return _USER_ALONE.sub("***@", without_queries)


def shortened(text: str) -> str:
    """Return text without the middle of long lines and the lines after the fiftieth. Secrets are masked first."""
    if len(text) <= _MAX_LINE:
        return text
    lines = masked(text).split("\n")
    short_lines = [_without_middle(line) for line in lines[:_MAX_LINES]]
    if len(lines) > _MAX_LINES:
        short_lines.append(f"... and {counted(len(lines) - _MAX_LINES, 'more line')}")
    return "\n".join(short_lines)


def _without_middle(line: str) -> str:
    if len(line) <= _MAX_LINE:
        return line
    return f"{line[: 2 * _MAX_LINE // 3]} ... {line[-_MAX_LINE // 3 :]}"


def plain(text: str) -> str:
    """Return text without control characters: a name from a server or a file must not steer the terminal."""
    return _CONTROL.sub("\ufffd", text)


def plain_lines(text: str) -> str:
    """Return text of several lines without control characters in them."""
    return "\n".join(map(plain, text.split("\n")))


def show(value: object) -> str:
    """Return a value for a message. It is short even if the value is large or deep."""
    return "missing" if value is None else _REPR.repr(value)


def counted(num: float, noun: str) -> str:
    """Return ``1 box``, ``1,234 boxes``, ``0 categories`` or ``2 keys``."""
    if num == 1:
        name = noun
    elif noun.endswith("y") and noun[-2] not in "aeiou":  # categories, but keys
        name = f"{noun[:-1]}ies"
    elif noun.endswith("x"):
        name = f"{noun}es"
    else:
        name = f"{noun}s"
    return f"{num:,.15g} {name}"


def kind_of(value: object) -> str:
    """Return the kind of a JSON value, for a message about structure."""
    if isinstance(value, list | tuple):
        return f"a list of {counted(len(value), 'value')}"  # pyright: ignore[reportUnknownArgumentType]
    if value is None:
        return "missing"
    return _KINDS.get(type(value), f"a {type(value).__name__}")


def nearest_of(name: str, choices: Iterable[str], *, prefix: str = "") -> str:
    """Return a hint for a name that is not among ``choices``: the nearest choice, or all of them.

    Args:
        name: what somebody wrote.
        choices: what could have been written.
        prefix: shown before each choice and not compared, such as the section that the names are keys of.
    """
    names = list(choices)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {prefix}{close[0]}?"
    all_choices = ", ".join(prefix + choice for choice in names)
    return f"there is {all_choices or 'none'}"


def is_text(value: object) -> bool:
    """Return whether a value is a string with visible characters, and without half a surrogate pair (from JSON)."""
    return isinstance(value, str) and bool(value.strip()) and not _SURROGATE.search(value)


def is_name(value: object) -> bool:
    """Return whether a value is text without control characters, fit for one line of a table, a chart or a page."""
    return isinstance(value, str) and is_text(value) and plain(value) == value


def chain(error: BaseException | None) -> Generator[BaseException]:
    """Yield an error and the errors behind it, each once: after ``raise error from error`` they form a circle."""
    seen = list[BaseException]()
    while error is not None and not any(error is link for link in seen):
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


def summary(error: BaseException) -> str:
    """Return class and first line of another library's error, for a sentence of ours.

    If the first line is a headline that ends with a colon, the second line follows it.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    message = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return shortened(f"{type(error).__name__}: {message}")
