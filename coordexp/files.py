"""Files that are whole or absent: written under a temporary name, then renamed. Also checked reading, and hashes."""

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
# Messages of safetensors, SQLite, torch's zip writer and numpy. They hide the system's error number.
_NO_ROOM_TEXTS = re.compile(
    r"No space left on device|Disk quota exceeded|database or disk is full|PytorchStreamWriter failed writing"
    r"|\. unexpected pos |\d+ requested and \d+ written"
)

# A TypeAliasType, because pydantic can check a type that contains itself only by its name.
JsonValue = TypeAliasType("JsonValue", "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None")
_T = TypeVar("_T")
_Stamp = tuple[tuple[str, int, int], ...]  # name, time and size of each file
_GZIP_MAGIC = b"\x1f\x8b"  # no JSON begins with it
# First line of the pointer that git leaves instead of a file if git-lfs did not fetch it; the second is an older form.
_LFS_HEADS = (b"version https://git-lfs.github.com/spec/", b"version https://hawser.github.com/spec/")
LFS_POINTER = "Git LFS pointer"
_LFS_MOST_BYTES = 1024  # the specification's limit of a pointer
_CACHED_FILES = 64  # results that each `read_once` remembers
_FILES_OF_A_TASK = 16
_READERS = 8  # files that are read at once to be hashed: a network disk answers each request slowly, but many at once


def write_text(path: Path, text: str) -> None:
    """Write text in one step: a reader sees the old file or the new one, never a part."""
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
    """Write a value as JSON in one step. NaN and infinity are a ValueError."""
    write_text(path, json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False) + "\n")


def is_lfs_pointer(content: bytes) -> bool:
    """Return whether a file that begins with ``content`` is a Git LFS pointer: three lines instead of the file."""
    return content.startswith(_LFS_HEADS)


def lfs_problem(path: Path) -> str:
    """Return the error message for a file that is a Git LFS pointer; "" for any other file, and for a missing one.

    Call it before you report any other fault of a file, because a pointer looks like a damaged file of every format.
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
    of_size = f" of {int(size[1]):,} bytes" if size is not None else ""
    return (
        f"{path}: that is a {LFS_POINTER}, which stands for a file{of_size} that was not downloaded with the "
        "clone; run: git lfs pull (in the clone; git-lfs must be installed)"
    )


def read_content(path: Path) -> bytes:
    """Return the bytes of a file, unpacked if gzip has packed them.

    Raises:
        DataError: if it cannot be read; says why.
    """
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
    """Parse JSON strictly: UTF-8 and finite numbers only.

    Raises:
        ValueError: says what is wrong and where.
    """
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
    """Parse JSON as a dataclass or another type that pydantic knows. Every field must have exactly its type.

    Raises:
        ValueError: says what is wrong and where, as :func:`parse_json` does.
    """
    parse_json(content)  # refuses NaN and infinity, which pydantic would accept
    return _validated(kind, content, strict=True)


def read_json(path: Path) -> JsonValue:
    """Read a file of JSON, see :func:`parse_json`.

    Raises:
        DataError: names the file and what is wrong with it.
    """
    content = read_content(path)
    try:
        return parse_json(content)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def kept_json(path: Path) -> JsonValue:
    """Return what a cache file holds; None if it is missing or damaged, so that it is made again."""
    try:
        return read_json(path)
    except DataError:
        return None


def kept_model(kind: type[_T], path: Path) -> _T | None:
    """Return what a cache file holds, see :func:`parse_model`; None if it is missing or holds anything else."""
    try:
        return parse_model(kind, read_content(path))
    except ValueError:
        return None


def read_model(kind: type[_T], path: Path, *, what: str) -> _T:
    """Read a JSON file, packed or not, as a dataclass or another type that pydantic knows.

    Args:
        kind: the type; every field is checked.
        path: the file.
        what: what was expected there, in words, for the error.

    Raises:
        DataError: names the file and what is wrong with it.
    """
    content = read_content(path)
    try:
        parse_json(content)  # refuses NaN and infinity, which pydantic would accept
        return _validated(kind, content)
    except ValueError as error:
        raise DataError(f"{path}: expected {what} ({error})") from None


def read_json_lines(kind: type[_T], path: Path) -> list[_T]:
    """Read a file with one JSON value per line, each as a dataclass or another type that pydantic knows.

    Fields that ``kind`` does not name are skipped without being parsed into objects, which makes a large file much
    faster to read.

    Raises:
        DataError: names the file, the line and what is wrong with it.
    """
    try:
        text = read_content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected a text file with one JSON object a line ({error})") from None
    # Not splitlines, which also splits at characters such as U+2028 that a JSON string may hold.
    lines = text.removesuffix("\n").split("\n") if text else []
    values = list[_T]()
    for number, line in enumerate(lines, start=1):
        try:
            values.append(_validated(kind, line))
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from None
    return values


def _validated(kind: type[_T], content: bytes | str, *, strict: bool | None = None) -> _T:
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_json(content, strict=strict)
    except ValidationError as error:
        parse_json(content)  # if it is not JSON at all, this error names the place
        raise ValueError(first_problem(error)) from None


@functools.cache
def _adapter(kind: "type[_T]") -> "TypeAdapter[_T]":
    from pydantic import TypeAdapter  # here, because processes that only read annotations need no pydantic

    return TypeAdapter(kind)


def first_problem(error: "ValidationError") -> str:
    """Return the first fault that pydantic found: which field, and why."""
    first_error = error.errors()[0]
    words: list[str] = []
    for word in map(str, first_error["loc"]):
        is_short = len(word) <= 100 and word.isprintable()
        words.append(word if is_short else show(word))
    field = ".".join(words) or "file"
    return f"{field}: {first_error['msg']}"


def read_once(read: Callable[[Path], _T]) -> Callable[[Path], _T]:
    """Decorate a function that reads a file or folder, so that it reads again only if that has changed."""

    @functools.lru_cache(maxsize=_CACHED_FILES)
    def read_as_it_is(path: Path, stamp: _Stamp) -> _T:
        del stamp  # only a key of the cache
        return read(path)

    @functools.wraps(read)
    def reading(path: Path) -> _T:
        try:
            stamp = _stamp_of(path)
        except OSError:
            return read(path)  # raises an error that says what is wrong
        return read_as_it_is(path, stamp)

    return reading


def _stamp_of(path: Path) -> _Stamp:
    """Return name, time and size of a file, or of a folder and of every file in it.

    The time of a folder alone would not do: it changes with the list of names, and not if a file is rewritten.
    """
    paths = [path]
    if path.is_dir():
        paths += [file for file in sorted(path.rglob("*")) if file.is_file()]
    stamps: list[tuple[str, int, int]] = []
    for each_path in paths:
        stat = each_path.stat()
        stamps.append((str(each_path), stat.st_mtime_ns, stat.st_size))
    return tuple(stamps)


def nearest_existing(path: Path) -> Path:
    """Return ``path``, or the nearest folder above it that exists."""
    return next(candidate for candidate in (path, *path.parents) if candidate.exists())


@contextlib.contextmanager
def replace_directory(path: Path) -> Generator[Path]:
    """Yield an empty folder that becomes ``path`` if the block raises nothing, and is deleted otherwise.

    The old folder is moved aside and then deleted. If the process is killed in between, the next call restores it.
    """
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
    """Remove the temporary folders of killed writers of ``path``, and restore what one of them had moved aside."""
    import psutil  # here, because a help text is printed without it

    for leftover in sorted(path.parent.glob(f".{glob.escape(path.name)}.*.*")):
        pid, kind = leftover.name.rsplit(".", 2)[1:]
        if kind not in ("tmp", "old") or not pid.isdigit() or psutil.pid_exists(int(pid)):
            continue
        if kind == "old" and not path.exists():
            leftover.rename(path)
        elif leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)


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
    """Return the SHA-256 of files in their order. A file is read only if it has changed since its hash was stored.

    A file has not changed if its size, its times and its inode are the same. Among the times is that of the last change
    of any kind (ctime), which nobody can set.

    Args:
        files: the files.
        kept_in: file of the stored hashes. If it is damaged, it counts as empty; if it cannot be written, the files are
            read again next time.
        report: called by any thread with what is counted, how much has been read and how much there is to read.
    """
    content = kept_json(kept_in)
    stored: dict[str, JsonValue] = content if isinstance(content, dict) else {}
    states: dict[str, str] = {}
    sizes: dict[str, int] = {}
    hashes: dict[str, str] = {}
    for file in files:
        name = str(file)
        stat = os.stat(name)
        # Text, because the inodes of some file systems exceed the 63 bits of an integer in our JSON.
        states[name] = f"{stat.st_size}-{stat.st_mtime_ns}-{stat.st_ctime_ns}-{stat.st_ino}"
        sizes[name] = stat.st_size
        match stored.get(name):
            case [state, str(stored_hash)] if state == states[name]:
                hashes[name] = stored_hash
            case _:
                pass
    changed = [name for name in states if name not in hashes]
    # One task for many files: for a small picture, handing over a task takes as long as hashing it.
    batches = [changed[start : start + _FILES_OF_A_TASK] for start in range(0, len(changed), _FILES_OF_A_TASK)]
    total_mib = -(-sum(sizes[name] for name in changed) // 2**20)
    bytes_read = 0
    lock = threading.Lock()

    def hashes_of(names: Sequence[str]) -> dict[str, str]:
        nonlocal bytes_read
        batch_hashes: dict[str, str] = {}
        for name in names:
            batch_hashes[name] = sha256_of_file(Path(name))
            with lock:
                bytes_read += sizes[name]
                report("MiB hashed", min(bytes_read // 2**20, total_mib), total_mib)
        return batch_hashes

    with ThreadPoolExecutor(_READERS) as readers:
        for batch_hashes in readers.map(hashes_of, batches):
            hashes |= batch_hashes
    if changed:
        entries: dict[str, JsonValue] = {name: [states[name], hashes[name]] for name in states}
        with contextlib.suppress(OSError):
            write_json(kept_in, stored | entries)
    return [hashes[str(file)] for file in files]
