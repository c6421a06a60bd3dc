"""The content of a file that another tool wrote: unpacked, decoded, and as JSON values with their places."""

import io
import json
import re
import zipfile
import zlib
from pathlib import Path

from coordexp.errors import DataError
from coordexp.files import parse_json, read_content

_ZIP_MAGIC = b"PK\x03\x04"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_JSON_IN_ARCHIVE = re.compile(r"^(?!__MACOSX).*\.jsonl?$")


def unpacked(path: Path) -> tuple[bytes, bool]:
    """Return the bytes of a file, out of gzip or of a zip with one file of JSON, and whether they were packed."""
    content = read_content(path)
    if not content.startswith(_ZIP_MAGIC):
        return content, path.suffix == ".gz"
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if any(name.endswith("data.pkl") for name in archive.namelist()):
                raise DataError(
                    f"{path}: a file of torch.save, such as detectron2's instances_predictions.pth, which is not read; "
                    "take coco_instances_results.json, which stands beside it"
                )
            names = [name for name in archive.namelist() if _JSON_IN_ARCHIVE.search(name)]
            if len(names) != 1:
                raise DataError(f"{path}: the archive holds {len(names)} files of JSON, expected one")
            return archive.read(names[0]), True
    except (zipfile.BadZipFile, RuntimeError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: the archive cannot be unpacked ({error}); is the file complete?") from None


def decoded(content: bytes, path: Path) -> str:
    """Return the text of UTF-8, with or without its mark, or of UTF-16 with its mark."""
    try:
        return content.decode("utf-16" if content[:2] in _UTF16_MARKS else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; expected a JSON file") from None


def parsed(content: bytes, path: Path) -> object:
    """Return a file's JSON, or the values of its lines; also what only Python's parser takes, such as NaN."""
    text = decoded(content, path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            place = f"line {error.lineno} column {error.colno}"
            raise DataError(f"{path}: {place}: not valid JSON ({error.msg}); is the file complete?") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error})") from None

    values: list[object] = []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            values += [json.loads(line)] if line.strip() else []
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: not valid JSON ({error}); is the file complete?") from None
    return values


def records(path: Path) -> list[tuple[str, object]]:
    """Return the values of a file of records with the place of each: of its lines, or of its one list or object.

    Raises:
        DataError: with the line that is no JSON.
    """
    text = decoded(unpacked(path)[0], path)
    try:
        document = parse_json(text)
    except ValueError as error:
        if text.lstrip().startswith("["):
            raise DataError(f"{path}: {error}; is the file complete?") from None
    else:
        if isinstance(document, list):
            return [(f"{path}: answer [{place}]", value) for place, value in enumerate(document)]
        return [(f"{path}:1", document)]

    found: list[tuple[str, object]] = []
    # Not splitlines: a text may hold any character, and JSON leaves exotic line ends alone.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found.append((f"{path}:{number}", parse_json(line)))
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from None
    return found
