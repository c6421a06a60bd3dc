"""Write a merged checkpoint piece by piece, so that memory holds 64 MB of rows and not the model."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from coordexp.coord_tokens.offset_adapter import DTypeName
from coordexp.errors import CheckpointError
from coordexp.files import write_json, write_text
from coordexp.model.checkpoint.checkpoint_io import INDEX_FILE, JsonObject, check_config
from coordexp.model.checkpoint.skeleton import EMBEDDING, HEAD, Skeleton
from coordexp.model.checkpoint.weight_files import TensorSpec, write_safetensors
from coordexp.model.merge.merge_weights import AdapterDelta
from coordexp.model.progress import Progress, silent

STAGE = "writing shards"

_VISION = "model.visual."

# What the tokenizer's and the image processor's own files leave out.
_CARRIED = ("generation_config.json", "processor_config.json")


def write_merged(
    base: Skeleton,
    delta: AdapterDelta,
    output: Path,
    *,
    dtype: DTypeName = "auto",
    base_dtype: DTypeName = "auto",
    progress: Progress = silent,
) -> str:
    """Write config and weights of ``base`` with ``delta`` baked in.

    Shards keep their names. A tied base stays tied unless the adapter has its own head table:
    then ``lm_head.weight`` is written next to the embedding and the configuration says so.
    Tensors that the model has no place for stay behind.

    Args:
        base: the checkpoint, its headers checked.
        delta: what to add.
        output: an existing directory.
        dtype: of the weights written; ``auto`` keeps each one's own.
        base_dtype: what the base was rounded to when the adapter was trained; ``auto`` for as stored.
        progress: told of every shard.

    Returns:
        The dtype of the embedding written, by name.

    Raises:
        CheckpointError: if the adapter is for another base, or a merged weight is not finite.
        OSError: as the disk says.
    """
    delta.check_fits(base)
    merge = _Merge(base, delta, dtype, base_dtype)
    plan = merge.plan()
    for number, (file, specs) in enumerate(plan.items()):
        progress(STAGE, number, len(plan))
        write_safetensors(output / file, specs, merge.pieces)
    progress(STAGE, len(plan), len(plan))
    directory = base.weights.directory
    if base.weights.sharded:
        write_index(output, plan)
    everything = {name: spec for specs in plan.values() for name, spec in specs.items()}
    config = check_config(directory)
    _write_config(output, config, everything, tied=base.tied and not delta.unties_head)
    carry_files(directory, output)
    return dtype_of(everything, EMBEDDING)


def write_index(output: Path, shards: dict[str, dict[str, TensorSpec]]) -> None:
    """Write the index of a sharded checkpoint: what each file holds."""
    specs = [spec for shard in shards.values() for spec in shard.values()]
    metadata = {
        "total_size": sum(spec.num_bytes for spec in specs),
        "total_parameters": sum(spec.num_elements for spec in specs),
    }
    weight_map = {name: file for file, shard in shards.items() for name in shard}
    write_json(output / INDEX_FILE, {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}, indent=2)


def carry_files(source: Path, output: Path) -> None:
    """Copy the configuration files that belong to a checkpoint and that no object of ours writes."""
    for name in _CARRIED:
        if (source / name).is_file():
            write_text(output / name, (source / name).read_text(encoding="utf-8"))


def dtype_of(specs: dict[str, TensorSpec], name: str) -> str:
    """Return a tensor's dtype as configuration files write it."""
    return str(specs[name].dtype).removeprefix("torch.")


@dataclass(frozen=True)
class _Merge:
    """What goes into the files: the plan, and the data of each tensor."""

    base: Skeleton
    delta: AdapterDelta
    dtype: DTypeName
    base_dtype: DTypeName

    @property
    def unties(self) -> bool:
        """Whether one table becomes two."""
        return self.base.tied and self.delta.unties_head

    def plan(self) -> dict[str, dict[str, TensorSpec]]:
        """Return the tensors of each file, by file name; files that would be empty are not there."""
        shards: dict[str, dict[str, TensorSpec]] = {}
        weights = self.base.weights
        for name in sorted(self.base.shapes):
            stored = weights.specs[name]
            spec = TensorSpec(stored.shape, _cast_dtype(stored.dtype, self.dtype))
            shard = shards.setdefault(weights.files[name].name, {})
            shard[name] = spec
            if name == EMBEDDING and self.unties:
                shard[HEAD] = spec
        return dict(sorted(shards.items()))

    def pieces(self, name: str) -> Iterator[Tensor]:
        """Yield the merged tensor, some rows at a time, in its dtype."""
        source = EMBEDDING if name == HEAD and self.unties else name
        stored = self.base.weights.specs[source].dtype
        rounded = _cast_dtype(stored, self.base_dtype)
        wanted = _cast_dtype(stored, self.dtype)
        for start, rows in self.base.weights.pieces(source):
            merged = self.delta.apply(name, rows.to(rounded), start)
            written = merged.to(wanted)
            # What is read as it is stored is the base's own affair; what was computed must be a number.
            if written is not rows and written.is_floating_point() and not torch.isfinite(written).all():
                raise CheckpointError(f"{name}: the merged weight does not fit {str(wanted).removeprefix('torch.')}")
            yield written


def _cast_dtype(stored: torch.dtype, wanted: DTypeName) -> torch.dtype:
    return stored if wanted == "auto" or not stored.is_floating_point else getattr(torch, wanted)


def _write_config(output: Path, config: JsonObject, specs: dict[str, TensorSpec], *, tied: bool) -> None:
    """Write ``config`` with the present tie and dtypes; ``torch_dtype`` is the old name of ``dtype``."""
    vision = next((name for name in specs if name.startswith(_VISION)), EMBEDDING)
    text = _with_dtype(_section(config, "text_config"), dtype_of(specs, EMBEDDING)) | {"tie_word_embeddings": tied}
    changes: JsonObject = {
        "tie_word_embeddings": tied,
        "dtype": dtype_of(specs, EMBEDDING),
        "text_config": text,
        "vision_config": _with_dtype(_section(config, "vision_config"), dtype_of(specs, vision)),
    }
    kept = {key: value for key, value in config.items() if key != "torch_dtype"}
    write_json(output / "config.json", kept | changes, indent=2)


def _section(config: JsonObject, name: str) -> JsonObject:
    value = config.get(name)
    if not isinstance(value, dict):
        raise CheckpointError(f"config.json: no {name}; expected the configuration of a Qwen3-VL")
    return cast("JsonObject", value)


def _with_dtype(section: JsonObject, dtype: str) -> JsonObject:
    kept = {key: value for key, value in section.items() if key not in ("dtype", "torch_dtype")}
    return kept if len(kept) == len(section) else kept | {"dtype": dtype}
