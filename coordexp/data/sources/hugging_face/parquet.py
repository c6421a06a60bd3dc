"""Parquet files with pictures inside."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from coordexp.data.images.folder import PICTURES
from coordexp.errors import DataError, is_name
from coordexp.files import kept_json, lfs_problem, replace_directory, write_json
from coordexp.stages import report_stage

BATCH_ROWS = 256
_UNPACKED = ".unpacked.json"
"""In a folder of unpacked pictures: from which files they are, and the name of each row's picture."""
_ENDINGS = ((b"\xff\xd8", ".jpg"), (b"\x89PNG", ".png"), (b"RIFF", ".webp"), (b"GIF8", ".gif"), (b"BM", ".bmp"))
"""How the bytes of a picture begin -> the ending of its file."""


def opened_parquet(path: Path):  # noqa: ANN201 - pyarrow has no types
    """Open a parquet file; a DataError says that it is none, or cut short."""
    # Imported here: it takes a second, and only data in parquet files need it.
    import pyarrow as pa
    import pyarrow.parquet as pq

    pointer = lfs_problem(path)
    if pointer:
        raise DataError(pointer)
    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: not a whole parquet file ({reason}); is the file complete?") from None


def has_boxes(path: Path) -> bool:
    """Return whether a parquet file holds pictures with boxes."""
    schema = opened_parquet(path).schema_arrow
    return "image" in schema.names and re.search(r"\bb?box(es)?\b", str(schema)) is not None


def unpack_pictures(shards: Sequence[Path], folder: Path) -> list[str]:
    """Write the pictures of parquet files to a folder, unless they are there; the folder is whole or absent.

    Args:
        shards: the parquet files.
        folder: for the pictures.

    Returns:
        The name of each row's picture; "" for a row without one.
    """
    stats = {shard: shard.stat() for shard in shards}
    made_of = [[shard.name, stat.st_size, stat.st_mtime_ns] for shard, stat in stats.items()]
    record = kept_json(folder / _UNPACKED)
    if isinstance(record, dict) and record.get("made_of") == made_of:
        recorded_names = record.get("names")
        if isinstance(recorded_names, list):
            return [str(name) for name in recorded_names]

    num_rows = sum(opened_parquet(shard).metadata.num_rows for shard in shards)
    names: list[str] = []
    taken: set[str] = set()
    with replace_directory(folder) as building:
        for shard in shards:
            for batch in opened_parquet(shard).iter_batches(batch_size=BATCH_ROWS, columns=["image"]):
                for picture in batch.column("image").to_pylist():
                    name, content = _packed_picture(picture, len(names), taken)
                    if content is not None:
                        (building / name).write_bytes(content)
                    taken.add(name)
                    names.append(name)
                report_stage("pictures unpacked", len(names), num_rows)
        write_json(building / _UNPACKED, {"made_of": made_of, "names": names})
    return names


def _packed_picture(picture: object, row: int, taken: set[str]) -> tuple[str, bytes | None]:
    """Return the name and the bytes of a row's picture; "" and None without bytes.

    The picture's own name is used if no earlier picture has it, else the number of the row.

    Args:
        picture: the cell: bytes, or ``{"bytes": ..., "path": ...}``.
        row: its number.
        taken: names of earlier pictures.
    """
    content = picture.get("bytes") if isinstance(picture, dict) else picture
    if not isinstance(content, bytes) or not content:
        return "", None
    path = picture.get("path") if isinstance(picture, dict) else None
    name = PurePosixPath(path.replace("\\", "/")).name if isinstance(path, str) else ""
    if PurePosixPath(name).suffix.lower() in PICTURES and is_name(name) and name not in taken:
        return name, content
    endings = [ending for head, ending in _ENDINGS if content.startswith(head)]
    return f"{row:07d}{endings[0] if endings else '.jpg'}", content
