"""Files that are either whole or absent: written under a temporary name, then renamed. Checked reading; full disks."""

import contextlib
import errno
import functools
import glob
import gzip
import hashlib
import json
import math
import os
import re
import shutil
import threading
import zlib
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from typing_extensions import TypeAliasType

from coordexp.errors import DataError, chain, show

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# As safetensors, SQLite, torch's zip writer and numpy word it; the last three hide the system's reason.
_NO_ROOM_TEXTS = re.compile(
    r"No space left on device|Disk quota exceeded|database or disk is full|PytorchStreamWriter failed writing"
    r"|\. unexpected pos |\d+ requested and \d+ written"
)

# A name of its own, so that pydantic can check a type that holds itself.
JsonValue = TypeAliasType("JsonValue", "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None")
_T = TypeVar("_T")
_Stamp = tuple[tuple[str, int, int], ...]  # name, time and size
_GZIP_MAGIC = b"\x1f\x8b"  # no JSON begins so
# What git leaves in the place of a file that git-lfs should have fetched; the second is the specification's first name.
_LFS_HEADS = (b"version https://git-lfs.github.com/spec/", b"version https://hawser.github.com/spec/")
LFS_POINTER = "Git LFS pointer"
_LFS_MOST_BYTES = 1024  # the specification's limit of a pointer
_KEPT_FILES = 64  # of what `read_once` has read
_FILES_OF_A_TASK = 16
_READERS = 8  # files read at once to be hashed, so that a disk elsewhere does not answer one after the other


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` in one step, so that a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: object, *, indent: int | None = None) -> None:
    """Write ``value`` as JSON in one step; NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False) + "\n")


def is_lfs_pointer(content: bytes) -> bool:
    """Return whether a file that begins with ``content`` is a Git LFS pointer: three lines in the place of the file."""
    return content.startswith(_LFS_HEADS)


def lfs_problem(path: Path) -> str:
    """Return the sentence on a file that is a Git LFS pointer, with the way on; "" for any other, or none.

    Whoever cannot make sense of a file asks here before saying what else may be wrong with it.
    """
    try:
        if path.stat().st_size > _LFS_MOST_BYTES:
            return ""
        with path.open("rb") as file:
            head = file.read(_LFS_MOST_BYTES)
    except OSError:
        return ""
    if not is_lfs_pointer(head):
        return ""
    size = re.search(rb"^size (\d+)\s*$", head, re.MULTILINE)
    stands_for = f" of {int(size[1]):,} bytes" if size is not None else ""
    return (
        f"{path}: that is a {LFS_POINTER}, which stands for a file{stands_for} that was not downloaded with the "
        "clone; run: git lfs pull (in the clone; git-lfs must be installed)"
    )


def read_content(path: Path) -> bytes:
    """Return the bytes of a file, unpacked where gzip has packed them; a DataError says why it cannot be read."""
    try:
        content = path.read_bytes()
        if is_lfs_pointer(content):
            raise DataError(lfs_problem(path))
        return gzip.decompress(content) if content.startswith(_GZIP_MAGIC) else content
    except FileNotFoundError:
        raise DataError(f"{path}: file not found") from None
    except IsADirectoryError:
        raise DataError(f"{path}: that is a folder; expected a file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: gzip cannot unpack it ({error}); is the file complete?") from None
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read ({error.strerror})") from None


def parse_json(content: bytes | str) -> JsonValue:
    """Parse JSON strictly: UTF-8, finite numbers; a ValueError says what is wrong and where."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        return json.loads(text, parse_constant=_refuse_number, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno} column {error.colno}: not valid JSON ({error.msg})") from None
    except RecursionError:
        raise ValueError("nested too deeply to be read") from None


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_number(text)


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{show(text)} is no finite number")


def parse_model(kind: type[_T], content: bytes | str) -> _T:
    """Parse JSON as a dataclass or another type that pydantic knows, with every field of just its type.

    A ValueError says what is wrong and where, as of :func:`parse_json`.
    """
    parse_json(content)  # refuses the numbers that pydantic takes
    return _validated(kind, content, strict=True)


def read_json(path: Path) -> JsonValue:
    """Read a file of JSON, see :func:`parse_json`; a DataError names the file and what is wrong with it."""
    content = read_content(path)
    try:
        return parse_json(content)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def kept_json(path: Path) -> JsonValue:
    """Return what a file holds that can be made again; None where it is missing or damaged."""
    try:
        return read_json(path)
    except DataError:
        return None


def kept_model(kind: type[_T], path: Path) -> _T | None:
    """Return what a file holds as :func:`parse_model` checks it; None where it is missing or anything else."""
    try:
        return parse_model(kind, read_content(path))
    except ValueError:
        return None


def read_model(kind: type[_T], path: Path, *, what: str) -> _T:
    """Read a JSON file, packed or not, as a dataclass or another type that pydantic knows, with every field checked.

    A DataError says that ``what``, in words, was expected.
    """
    content = read_content(path)
    try:
        parse_json(content)  # refuses the numbers that pydantic takes
        return _validated(kind, content)
    except ValueError as error:
        raise DataError(f"{path}: expected {what} ({error})") from None


def read_json_lines(kind: type[_T], path: Path) -> list[_T]:
    """Read a file of one JSON value a line as dataclasses or another type that pydantic knows, every field checked.

    Fields that ``kind`` does not name are passed over unread, which for a large file is most of the work. A DataError
    names the file, the line and what is wrong with it.
    """
    try:
        text = read_content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected a text file with one JSON object a line ({error})") from None
    found = list[_T]()
    # Not splitlines: a text may hold any character, and JSON leaves exotic line ends alone.
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), start=1):
        try:
            found.append(_validated(kind, line))
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from None
    return found


def _validated(kind: type[_T], content: bytes | str, *, strict: bool | None = None) -> _T:
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_json(content, strict=strict)
    except ValidationError as error:
        parse_json(content)  # where it is no JSON at all, this says the place
        raise ValueError(first_problem(error)) from None


@functools.cache
def _adapter(kind: "type[_T]") -> "TypeAdapter[_T]":
    from pydantic import TypeAdapter  # here: processes that only read annotations need no pydantic

    return TypeAdapter(kind)


def first_problem(error: "ValidationError") -> str:
    """Return the first thing that pydantic objects to: which field, and why."""
    first = error.errors()[0]
    place = ".".join(part if len(part) <= 100 and part.isprintable() else show(part) for part in map(str, first["loc"]))
    return f"{place or 'file'}: {first['msg']}"


def read_once(read: Callable[[Path], _T]) -> Callable[[Path], _T]:
    """Decorate a function that reads a file or a folder: what was read last is read again only where it has changed."""

    @functools.lru_cache(maxsize=_KEPT_FILES)
    def read_as_it_is(path: Path, stamp: _Stamp) -> _T:
        del stamp
        return read(path)

    @functools.wraps(read)
    def reading(path: Path) -> _T:
        try:
            stamp = _stamp_of(path)
        except OSError:
            return read(path)  # which raises with what is wrong
        return read_as_it_is(path, stamp)

    return reading


def _stamp_of(path: Path) -> _Stamp:
    """Return name, time and size of a file, or of every file in a folder: its own time is that of its list of names."""
    stat = path.stat()
    own = (str(path), stat.st_mtime_ns, stat.st_size)
    if not path.is_dir():
        return (own,)
    files = ((file, file.stat()) for file in sorted(path.rglob("*")) if file.is_file())
    return (own, *((str(file), stat.st_mtime_ns, stat.st_size) for file, stat in files))


def nearest_existing(path: Path) -> Path:
    """Return ``path``, or the nearest folder above it that exists."""
    return next(place for place in (path, *path.parents) if place.exists())


@contextlib.contextmanager
def replace_directory(path: Path) -> Generator[Path]:
    """Yield an empty folder that becomes ``path`` when the block ends well, and vanishes otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear_up_after_killed(path)
    building = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    try:
        yield building
        old = path.with_name(f".{path.name}.{os.getpid()}.old")
        if path.exists():
            path.rename(old)
        building.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _clear_up_after_killed(path: Path) -> None:
    """Remove what writers of ``path`` that were killed left behind, and bring back what one had moved aside."""
    import psutil  # here: nothing else on the way to a help text needs it

    for left in sorted(path.parent.glob(f".{glob.escape(path.name)}.*.*")):
        pid, kind = left.name.rsplit(".", 2)[1:]
        if kind not in ("tmp", "old") or not pid.isdigit() or psutil.pid_exists(int(pid)):
            continue
        if kind == "old" and not path.exists():
            left.rename(path)
        elif left.is_dir():
            shutil.rmtree(left, ignore_errors=True)


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error, or one behind it, comes from a full disk or quota."""
    return any(
        (isinstance(link, OSError) and link.errno in _NO_ROOM) or _NO_ROOM_TEXTS.search(str(link))
        for link in chain(error)
    )


def sha256_of_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def sha256_of_file(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def known_hashes(
    files: Sequence[Path] | Sequence[str],
    kept_in: Path,
    *,
    report: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> list[str]:
    """Return the SHA-256 of large files, several read at once, each read once and again when it has changed.

    A file keeps its hash while its size, its times and its inode are the same. Among the times is that of the last
    change of whatever kind (ctime), which nobody can set. The hashes are kept in the file ``kept_in``; one that is
    damaged counts as empty, and one that cannot be written costs a reading, not the command.

    Args:
        files: to be hashed.
        kept_in: the file of the hashes.
        report: is called with what is counted, how much of it is read and how much there is to read, by any thread.
    """
    kept = kept_json(kept_in)
    known: dict[str, JsonValue] = kept if isinstance(kept, dict) else {}
    states: dict[str, str] = {}
    sizes: dict[str, int] = {}
    hashes: dict[str, str] = {}
    for file in files:
        name = str(file)
        stat = os.stat(name)
        # As text: some file systems number beyond the 63 bits that a whole number of our JSON may have.
        states[name] = f"{stat.st_size}-{stat.st_mtime_ns}-{stat.st_ctime_ns}-{stat.st_ino}"
        sizes[name] = stat.st_size
        match known.get(name):
            case [state, str(kept_hash)] if state == states[name]:
                hashes[name] = kept_hash
            case _:
                pass
    changed = [name for name in states if name not in hashes]
    # A task for many files: for a small picture, handing a task over takes as long as hashing it.
    batches = [changed[start : start + _FILES_OF_A_TASK] for start in range(0, len(changed), _FILES_OF_A_TASK)]
    total_mib = -(-sum(sizes[name] for name in changed) // 2**20)
    bytes_read = 0
    lock = threading.Lock()

    def hashes_of(names: Sequence[str]) -> dict[str, str]:
        nonlocal bytes_read
        of_names: dict[str, str] = {}
        for name in names:
            of_names[name] = sha256_of_file(Path(name))
            with lock:
                bytes_read += sizes[name]
                report("MiB hashed", min(bytes_read // 2**20, total_mib), total_mib)
        return of_names

    with ThreadPoolExecutor(_READERS) as readers:
        for batch in readers.map(hashes_of, batches):
            hashes |= batch
    if changed:
        now: dict[str, JsonValue] = {name: [states[name], hashes[name]] for name in states}
        with contextlib.suppress(OSError):
            write_json(kept_in, known | now)
    return [hashes[str(file)] for file in files]
