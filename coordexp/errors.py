"""The errors a user can cause: one root, one leaf for each kind of input; and how values appear in them."""

import difflib
import re
import reprlib
from collections.abc import Generator, Iterable

# A path has one slash of an address's two.
_USER = re.compile(
    r"(\b(?!sqlite\b)[A-Za-z][\w+.-]*:/{1,2}(?!/)|sqlite://(?!/)|(?<![\w:/.])//)(?!USER:PASSWORD@)"
    r"(?:(?![\s'\"=][A-Za-z][\w+.-]*:/)[^\n])*@"
)
_QUERY = re.compile(r"(:/{1,2}[^\s?#'\"]*[?#])(?!/experiments)[^\s'\"]+")
_USER_ALONE = re.compile(r"(?<![\w/*.-])[^\s:/@'\"=({\[,]+:(?!/|PASSWORD@)[^\s@]+@")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")  # UTF-8 cannot write it
_KINDS: dict[type, str] = {bool: "true or false", int: "a number", float: "a number", str: "text", dict: "an object"}
_MAX_LINE, _MAX_LINES = 500, 50  # of a message; a table of differences has 30 lines


class _MaskingRepr(reprlib.Repr):
    """Masks before it shortens: half an address is not known as one."""

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(masked(x), level)


_REPR = _MaskingRepr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 60


class CoordExpError(ValueError):
    """Input coordexp cannot work with; the message says what, where and what was expected."""

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
    """Training failed in a way that more steps cannot fix (a non-finite loss)."""


class DivergedError(TrainingError):
    """Loss or gradients stopped being finite; every rank raises it at the same step."""


def masked(text: str) -> str:
    """Return text in which no address has a user, a password, a query or a fragment.

    What follows an address, up to the next, is left out rather than a password with a space in it shown. A database's
    file may have any character; the word USER:PASSWORD of our own sentences is none.
    """
    return _USER_ALONE.sub("***@", _QUERY.sub(r"\1***", _USER.sub(r"\1***@", text)))


def shortened(text: str) -> str:
    """Return text without the middle of long lines, and without what follows many lines. A secret is masked first."""
    if len(text) <= _MAX_LINE:
        return text
    lines = masked(text).split("\n")
    kept = [
        line if len(line) <= _MAX_LINE else f"{line[: 2 * _MAX_LINE // 3]} ... {line[-_MAX_LINE // 3 :]}"
        for line in lines[:_MAX_LINES]
    ]
    more = [f"... and {counted(len(lines) - _MAX_LINES, 'more line')}"] if len(lines) > _MAX_LINES else []
    return "\n".join(kept + more)


def plain(text: str) -> str:
    """Return text without control characters: a name from a server or a file must not steer the terminal."""
    return _CONTROL.sub("\ufffd", text)


def plain_lines(text: str) -> str:
    return "\n".join(map(plain, text.split("\n")))


def show(value: object) -> str:
    """Return ``value`` for a message: short, however large or deep it is."""
    return "missing" if value is None else _REPR.repr(value)


def counted(num: float, noun: str) -> str:
    """Return ``1 box``, ``1,234 boxes`` or ``0 categories``."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}{'e' * noun.endswith('x')}s"
    return f"{num:,.15g} {noun if num == 1 else many}"


def kind_of(value: object) -> str:
    """Return what kind of JSON ``value`` this is, for a message about structure."""
    if isinstance(value, list | tuple):
        return f"a list of {counted(len(value), 'value')}"  # pyright: ignore[reportUnknownArgumentType]
    return "missing" if value is None else _KINDS.get(type(value), f"a {type(value).__name__}")


def nearest_of(name: str, choices: Iterable[str], *, prefix: str = "") -> str:
    """Return a hint for a name that is not among ``choices``: the nearest one, or all of them.

    ``prefix`` is shown before each choice and is not compared, such as the section that the names are keys of.
    """
    names = list(choices)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {prefix}{close[0]}?"
    return f"there is {', '.join(prefix + choice for choice in names) or 'none'}"


def is_text(value: object) -> bool:
    """Return whether ``value`` is a string with visible characters, none half a surrogate pair, which JSON can hold."""
    return isinstance(value, str) and bool(value.strip()) and not _SURROGATE.search(value)


def is_name(value: object) -> bool:
    """Return whether ``value`` is text for one line of a table, a chart and a page: without control characters."""
    return isinstance(value, str) and is_text(value) and plain(value) == value


def chain(error: BaseException | None) -> Generator[BaseException]:
    """Yield an error and those it was raised from, each once: after ``raise error from error`` they form a circle."""
    seen = list[BaseException]()
    while error is not None and not any(error is link for link in seen):
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


def summary(error: BaseException) -> str:
    """Return kind and first line of another library's error, for a sentence of ours; of a headline what follows it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    said = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return shortened(f"{type(error).__name__}: {said}")
