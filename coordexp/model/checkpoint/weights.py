"""The weights of a checkpoint: shape, dtype and file of every tensor, read from the headers of safetensors files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from coordexp.coord_tokens.dtypes import DTYPES, DTypeName
from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.directory import INDEX_FILE, tensor_names, weight_files, weight_map

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


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of a stored tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_elements(self) -> int:
        return torch.Size(self.shape).numel()

    @property
    def num_bytes(self) -> int:
        return self.num_elements * self.dtype.itemsize

    @property
    def dtype_name(self) -> str:
        """``bfloat16`` and the like."""
        return str(self.dtype).removeprefix("torch.")

    def cast_to(self, dtype: DTypeName) -> "TensorSpec":
        """Return it in another dtype; ``auto`` and what is no floating-point number stay as they are."""
        return TensorSpec(self.shape, DTYPES[dtype]) if self.dtype.is_floating_point and dtype != "auto" else self


@dataclass(frozen=True)
class StoredWeights:
    """The tensors of a checkpoint's safetensors files.

    Attributes:
        files: the file of each tensor, by name.
        sharded: whether an index says where they are.
        load: gives all tensors, where files have them under other names or in other shapes; ``files`` then holds no
            more than which files there are.
    """

    directory: Path
    specs: Mapping[str, TensorSpec]
    files: Mapping[str, Path]
    sharded: bool = False
    load: Callable[[], Mapping[str, Tensor]] | None = None

    @classmethod
    def of(cls, directory: Path) -> "StoredWeights":
        """Read the headers of a checkpoint's files: ``model.safetensors`` if it is there, else those of the index.

        Where the index names a tensor's file, that one counts; files that it does not name are not read.
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
        """Return a tensor, mapped: it takes memory where it is touched."""
        if self.load is not None:
            return self.load()[name]
        with safe_open(self.files[name], framework="pt") as handle:
            return handle.get_tensor(name)


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
