"""Safetensors by parts: read some rows of a tensor, write a file one piece at a time.

Reading maps the file, so a tensor costs memory only where it is touched and only while it is
referred to. Writing knows every shape beforehand, so no more than one piece is ever there.
"""

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from coordexp.coord_tokens.dtypes import DTYPES, DTypeName
from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.directory import INDEX_FILE, tensor_names, weight_files, weight_map

PIECE_BYTES = 64 * 2**20  # of a tensor that is handled row by row

_DTYPE_OF_CODE = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_CODE_OF_DTYPE = {dtype: code for code, dtype in _DTYPE_OF_CODE.items()}


@dataclass(frozen=True)
class TensorSpec:
    """What a file's header says of a tensor.

    Attributes:
        shape: its sizes.
        dtype: of its elements.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_elements(self) -> int:
        """How many numbers it holds."""
        return torch.Size(self.shape).numel()

    @property
    def num_bytes(self) -> int:
        """How long it is in a file."""
        return self.num_elements * self.dtype.itemsize

    @property
    def dtype_name(self) -> str:
        """Its dtype as configuration files write it."""
        return str(self.dtype).removeprefix("torch.")

    def cast_to(self, dtype: DTypeName) -> "TensorSpec":
        """Return the same with floating-point numbers of another dtype; ``auto`` keeps them."""
        is_cast = dtype != "auto" and self.dtype.is_floating_point
        return TensorSpec(self.shape, DTYPES[dtype]) if is_cast else self


@dataclass(frozen=True)
class StoredWeights:
    """The tensors of a checkpoint, on disk.

    Attributes:
        directory: of the checkpoint.
        specs: shape and dtype of each tensor, by name.
        files: the file of each tensor, by name.
        sharded: whether an index says where they are.
    """

    directory: Path
    specs: Mapping[str, TensorSpec]
    files: Mapping[str, Path]
    sharded: bool

    @classmethod
    def of(cls, directory: Path) -> "StoredWeights":
        """Read the headers of a checkpoint's files: ``model.safetensors`` if it is there, else those of the index.

        Where the index names a tensor's file, that one counts; files that it does not name are not read.

        Raises:
            CheckpointError: if a file is missing or cut short, or does not hold what the index says.
        """
        index = weight_map(directory)
        listed = index or {}
        specs: dict[str, TensorSpec] = {}
        files: dict[str, Path] = {}
        for file in weight_files(directory):
            for name, spec in _header(file).items():
                if listed.get(name, file.name) == file.name:
                    specs[name], files[name] = spec, file
        if missing := sorted(listed.keys() - specs.keys()):
            raise CheckpointError(
                f"{directory / INDEX_FILE}: names {missing[0]} in {listed[missing[0]]}, which does not hold it"
            )
        return cls(directory, specs, files, sharded=index is not None)

    def read(self, name: str) -> Tensor:
        """Return a whole tensor, mapped."""
        with safe_open(self.files[name], framework="pt") as handle:
            return handle.get_tensor(name)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Return rows ``start`` to ``stop`` of a tensor with at least one dimension, mapped."""
        with safe_open(self.files[name], framework="pt") as handle:
            return handle.get_slice(name)[start:stop]

    def listed_rows(self, name: str, ids: Sequence[int]) -> Tensor:
        """Return some rows of a table, in the order of ``ids``."""
        with safe_open(self.files[name], framework="pt") as handle:
            table = handle.get_slice(name)
            return torch.cat([table[row : row + 1] for row in ids])

    def columns(self, name: str, start: int, stop: int, *, num_rows: int) -> Tensor:
        """Return columns ``start`` to ``stop`` of the first ``num_rows`` rows of a table."""
        with safe_open(self.files[name], framework="pt") as handle:
            return handle.get_slice(name)[:num_rows, start:stop]

    def pieces(self, name: str) -> Iterator[tuple[int, Tensor]]:
        """Yield a tensor in blocks of rows of at most ``PIECE_BYTES``, each with its first row."""
        spec = self.specs[name]
        if not spec.shape:
            yield 0, self.read(name)
            return
        step = rows_per_piece(spec)
        for start in range(0, spec.shape[0], step):
            yield start, self.rows(name, start, min(start + step, spec.shape[0]))


def rows_per_piece(spec: TensorSpec) -> int:
    """Return how many rows of a tensor make a piece."""
    row_bytes = TensorSpec(spec.shape[1:], spec.dtype).num_bytes
    return max(1, PIECE_BYTES // max(1, row_bytes))


def write_safetensors(file: Path, specs: Mapping[str, TensorSpec], pieces: Callable[[str], Iterable[Tensor]]) -> None:
    """Write a safetensors file without ever holding more than one piece of it.

    The tensors come in the order in which the library itself would write them: wide elements
    first, so that each one is aligned, then by name.

    Args:
        file: to write.
        specs: of the tensors, by name.
        pieces: gives the data of a tensor, in order and in its dtype.

    Raises:
        OSError: as the disk says.
    """
    names = sorted(specs, key=lambda name: (-specs[name].dtype.itemsize, name))
    with file.open("wb") as out:
        header = _header_text(names, specs)
        out.write(struct.pack("<Q", len(header)) + header)
        for name in names:
            start = out.tell()
            for piece in pieces(name):
                assert piece.dtype == specs[name].dtype
                out.write(piece.contiguous().cpu().view(-1).view(torch.uint8).numpy().data)
            assert out.tell() - start == specs[name].num_bytes


def _header_text(names: Sequence[str], specs: Mapping[str, TensorSpec]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in names:
        spec = specs[name]
        stop = offset + spec.num_bytes
        header[name] = {"dtype": _CODE_OF_DTYPE[spec.dtype], "shape": list(spec.shape), "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    return text + b" " * (-len(text) % 8)


def _header(file: Path) -> dict[str, TensorSpec]:
    specs: dict[str, TensorSpec] = {}
    names = tensor_names(file)
    with safe_open(file, framework="pt") as handle:
        for name in names:
            part = handle.get_slice(name)
            if part.get_dtype() not in _DTYPE_OF_CODE:
                raise CheckpointError(
                    f"{file}: {name} is stored as {part.get_dtype()}; expected plain numbers, no quantised checkpoint"
                )
            specs[name] = TensorSpec(tuple(part.get_shape()), _DTYPE_OF_CODE[part.get_dtype()])
    return specs
