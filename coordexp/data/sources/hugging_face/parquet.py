"""Parquet files with pictures inside."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from coordexp.data.images.folder import PICTURES
from coordexp.errors import DataError, is_name
from coordexp.files import kept_json, lfs_problem, replace_directory, write_json
from coordexp.stages import report_stage

_PICTURES_MADE = ".unpacked.json"
_ENDINGS = ((b"\xff\xd8", ".jpg"), (b"\x89PNG", ".png"), (b"RIFF", ".webp"), (b"GIF8", ".gif"), (b"BM", ".bmp"))
BATCH_ROWS = 256


def opened_parquet(path: Path):  # noqa: ANN201 - pyarrow has no types
    """Open a parquet file; a DataError says that it is none, or cut short."""
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
    """Write the pictures of parquet files to a folder, unless they are there, and return the name of each row's.

    A row without a picture has the name "". The folder is whole or absent.
    """
    stats = {shard: shard.stat() for shard in shards}
    made_of = [[shard.name, stat.st_size, stat.st_mtime_ns] for shard, stat in stats.items()]
    known = kept_json(folder / _PICTURES_MADE)
    known_names = known.get("names") if isinstance(known, dict) and known.get("made_of") == made_of else None
    if isinstance(known_names, list):
        return [str(name) for name in known_names]
    num_rows = sum(opened_parquet(shard).metadata.num_rows for shard in shards)
    names: list[str] = []
    with replace_directory(folder) as building:
        taken: set[str] = set()
        for shard in shards:
            for batch in opened_parquet(shard).iter_batches(batch_size=BATCH_ROWS, columns=["image"]):
                for picture in batch.column("image").to_pylist():
                    name, content = _packed_picture(picture, len(names), taken)
                    if content is not None:
                        (building / name).write_bytes(content)
                    taken.add(name)
                    names.append(name)
                report_stage("pictures unpacked", len(names), num_rows)
        write_json(building / _PICTURES_MADE, {"made_of": made_of, "names": names})
    return names


def _packed_picture(picture: object, place: int, taken: set[str]) -> tuple[str, bytes | None]:
    """Return the name and the bytes of the picture of a row, which may say its name, alone or twice."""
    content = picture.get("bytes") if isinstance(picture, dict) else picture
    if not isinstance(content, bytes) or not content:
        return "", None
    said = picture.get("path") if isinstance(picture, dict) else None
    name = PurePosixPath(said.replace("\\", "/")).name if isinstance(said, str) else ""
    if PurePosixPath(name).suffix.lower() in PICTURES and is_name(name) and name not in taken:
        return name, content
    ending = next((ending for head, ending in _ENDINGS if content.startswith(head)), ".jpg")
    return f"{place:07d}{ending}", content
