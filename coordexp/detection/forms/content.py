"""The content of a file that another tool wrote: unpacked, decoded, and as JSON values with their places.

A file of detections may hold ``NaN``, which only Python's parser reads (:func:`parsed`); a box that is not finite is
then named by its place. A file of answers holds texts and no such numbers, so :func:`records` reads strict JSON.
"""

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
    """Return the bytes of a file, and whether they were packed with gzip or in a zip with one file of JSON."""
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
            json_names = [name for name in archive.namelist() if _JSON_IN_ARCHIVE.search(name)]
            if len(json_names) != 1:
                raise DataError(f"{path}: the archive holds {len(json_names)} files of JSON, expected one")
            return archive.read(json_names[0]), True
    except (zipfile.BadZipFile, RuntimeError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: the archive cannot be unpacked ({error}); is the file complete?") from None


def decoded(content: bytes, path: Path) -> str:
    """Decode UTF-8, with or without a byte order mark, or UTF-16 with one, which PowerShell writes."""
    encoding = "utf-16" if content[:2] in _UTF16_MARKS else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; expected a JSON file") from None


def parsed(content: bytes, path: Path) -> object:
    """Return a file's JSON, or the list of its lines' values; also what only Python's parser reads, such as NaN.

    Args:
        content: of the file, unpacked.
        path: of the file, for messages.

    Raises:
        DataError: naming the line that is no JSON.
    """
    text = decoded(content, path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        # "Extra data": one whole value, and more behind it, as in a file with one value a line.
        if error.msg != "Extra data":
            place = f"line {error.lineno} column {error.colno}"
            raise DataError(f"{path}: {place}: not valid JSON ({error.msg}); is the file complete?") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error})") from None

    values: list[object] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: not valid JSON ({error}); is the file complete?") from None
    return values


def records(path: Path) -> list[tuple[str, object]]:
    """Read a file of records: one value a line, one list, or one object.

    Returns:
        The values, each after its place for messages.

    Raises:
        DataError: naming the line that is no JSON.
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

    values_of_lines: list[tuple[str, object]] = []
    # Not splitlines: it also splits at line ends such as U+2028, which may stand inside a text of JSON.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values_of_lines.append((f"{path}:{number}", parse_json(line)))
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from None
    return values_of_lines
