"""The weights of a checkpoint: shape, dtype and file of every tensor, from the headers of safetensors files."""

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
        """The dtype without ``torch.``, such as ``bfloat16``."""
        return str(self.dtype).removeprefix("torch.")

    def cast_to(self, dtype: DTypeName) -> "TensorSpec":
        """Return the same tensor in another dtype. ``auto`` changes nothing, and integers are never cast."""
        if dtype == "auto" or not self.dtype.is_floating_point:
            return self
        return TensorSpec(self.shape, DTYPES[dtype])


@dataclass(frozen=True)
class StoredWeights:
    """The tensors of a checkpoint's safetensors files.

    Attributes:
        specs: shape and dtype of each tensor, by the name that it has in the model.
        files: the file of each tensor, by name. If ``load`` is set: each file, by its own name.
        sharded: whether an index says where the tensors are.
        load: returns all tensors. It is set if the files have them under other names or in other shapes, so that only
            transformers can read them.
    """

    directory: Path
    specs: Mapping[str, TensorSpec]
    files: Mapping[str, Path]
    sharded: bool = False
    load: Callable[[], Mapping[str, Tensor]] | None = None

    @classmethod
    def of(cls, directory: Path) -> "StoredWeights":
        """Read the headers of ``model.safetensors``, or if there is none, of the files that the index names.

        If two files hold a tensor of the same name, the one that the index names counts.
        """
        index = weight_map(directory)
        file_by_name = index or {}
        specs: dict[str, TensorSpec] = {}
        files: dict[str, Path] = {}
        for file in weight_files(directory):
            for name, spec in _header(file).items():
                if file_by_name.get(name, file.name) == file.name:
                    specs[name] = spec
                    files[name] = file
        missing = sorted(file_by_name.keys() - specs.keys())
        if missing:
            raise CheckpointError(
                f"{directory / INDEX_FILE}: names {missing[0]} in {file_by_name[missing[0]]}, which does not hold it"
            )
        return cls(directory, specs, files, sharded=index is not None)

    def read(self, name: str) -> Tensor:
        """Return a tensor. It is memory-mapped: pages that nobody touches take no memory."""
        if self.load is not None:
            return self.load()[name]
        with safe_open(self.files[name], framework="pt") as handle:
            return handle.get_tensor(name)


def _header(file: Path) -> dict[str, TensorSpec]:
    specs: dict[str, TensorSpec] = {}
    names = tensor_names(file)
    with safe_open(file, framework="pt") as handle:
        for name in names:
            header = handle.get_slice(name)  # reads no data
            dtype = _DTYPE_OF_CODE.get(header.get_dtype())
            if dtype is None:
                raise CheckpointError(
                    f"{file}: {name} is stored as {header.get_dtype()}; expected plain numbers, no quantised checkpoint"
                )
            specs[name] = TensorSpec(tuple(header.get_shape()), dtype)
    return specs
