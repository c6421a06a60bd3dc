"""Split arrays <-> one uncompressed ``.npz`` file."""

import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path

import numpy as np

from coordexp.data.sample import Samples
from coordexp.data.sets.split_arrays import (
    IMAGE_COLUMNS,
    OBJECT_COLUMNS,
    SAMPLE_COLUMNS,
    Column,
    Lists,
    SplitArrays,
    samples_of,
)
from coordexp.errors import DataError


def save_arrays(arrays: SplitArrays, path: Path) -> None:
    """Write a split as one file of uncompressed columns.

    The folder of the pictures is not in it: the set's record names the folder, since data may move.
    """
    columns: dict[str, Column] = {}
    for column in fields(arrays):
        value = getattr(arrays, column.name)
        if isinstance(value, np.ndarray):
            columns[column.name] = value
    columns |= _text_columns("names", arrays.names)
    columns |= _text_columns("texts", arrays.texts)
    columns |= _text_columns("split_names", arrays.split_names)
    columns |= _text_columns("units", arrays.units)
    columns |= _text_columns("tags", list(arrays.tags))
    for number, values in enumerate(arrays.tags.values()):
        columns |= _text_columns(f"tag_{number}", values)
    columns |= _text_columns("lists", list(arrays.lists))
    for number, lists in enumerate(arrays.lists.values()):
        columns[f"list_{number}_first"] = lists.first
        columns[f"list_{number}_values"] = lists.values
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **columns)


def load_samples(path: Path, folder: Path) -> Samples:
    """Read what a rank needs from a file of :func:`save_arrays`, and no other column.

    Args:
        path: the file.
        folder: root of the pictures' names.

    Raises:
        DataError: if the file is missing or damaged.
    """
    with _Columns(path) as columns:
        arrays = {name: columns[name] for name in SAMPLE_COLUMNS}
        return samples_of(folder, columns.texts("names"), tuple(columns.texts("texts")), arrays)


def load_arrays(path: Path, folder: Path) -> SplitArrays:
    """Read all of a file of :func:`save_arrays`.

    Args:
        path: the file.
        folder: root of the pictures' names.

    Raises:
        DataError: if the file is missing or damaged.
    """
    with _Columns(path) as columns:
        tags: dict[str, list[str]] = {}
        for number, tag in enumerate(columns.texts("tags")):
            tags[tag] = columns.texts(f"tag_{number}")
        lists: dict[str, Lists] = {}
        for number, name in enumerate(columns.texts("lists")):
            lists[name] = Lists(columns[f"list_{number}_first"], columns[f"list_{number}_values"])
        arrays = {name: columns[name] for name in (*IMAGE_COLUMNS, *OBJECT_COLUMNS, "first")}
        return SplitArrays(
            folder=folder,
            names=columns.texts("names"),
            texts=tuple(columns.texts("texts")),
            split_names=columns.texts("split_names"),
            units=columns.texts("units"),
            tags=tags,
            lists=lists,
            **arrays,
        )


class _Columns:
    """The columns of a file, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.names: list[str] = []

    def __enter__(self) -> "_Columns":
        with ExitStack() as stack:
            try:
                # Opened here: if the file is no archive, np.load would leave its own handle open.
                file = stack.enter_context(self._path.open("rb"))
                self._file = stack.enter_context(np.load(file, allow_pickle=False))
                self.names = list(self._file.files)
            except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
                raise self._damaged(error) from None
            self._close = stack.pop_all().close
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def __getitem__(self, name: str) -> Column:
        try:
            return self._file[name]
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
            raise self._damaged(error) from None

    def texts(self, name: str) -> list[str]:
        """Return a column of texts; see :func:`_text_columns`."""
        content = self[f"{name}_bytes"].tobytes()
        ends = self[f"{name}_ends"].tolist()
        starts = [0, *ends][: len(ends)]
        return [content[start:end].decode("utf-8", "surrogatepass") for start, end in zip(starts, ends, strict=True)]

    def _damaged(self, error: BaseException) -> DataError:
        return DataError(
            f"{self._path}: the experiment's data set is missing or damaged ({error}); the command that made it "
            "(ablation, sweep, train, doctor) makes it again"
        )


def _text_columns(name: str, texts: Sequence[str]) -> dict[str, Column]:
    """Return texts as two columns: the bytes of all, one after the other, and where each ends.

    A numpy array of texts would give every text the length of the longest one.
    """
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    ends = np.cumsum([len(content) for content in encoded], dtype=np.int64)
    return {f"{name}_bytes": np.frombuffer(b"".join(encoded), np.uint8), f"{name}_ends": ends}
