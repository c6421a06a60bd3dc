"""Write a merged checkpoint shard by shard, so that memory holds one shard and not the model."""

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from coordexp.coord_tokens.offset_adapter import DTypeName
from coordexp.errors import CheckpointError
from coordexp.files import write_json, write_text
from coordexp.model.checkpoint_io import INDEX_FILE, JsonObject, check_config, tensor_names, weight_files
from coordexp.model.merge_weights import EMBEDDING, HEAD, AdapterDelta

_GENERATION_CONFIG = "generation_config.json"


def write_merged(base: Path, delta: AdapterDelta, output: Path, *, dtype: DTypeName = "auto") -> str:
    """Write config and weights of ``base`` with ``delta`` baked in.

    Shards keep their names. A tied base stays tied unless the adapter has its own head table:
    then ``lm_head.weight`` is written next to the embedding and the configuration says so.

    Args:
        base: a checked checkpoint directory.
        delta: what to add.
        output: an existing directory.
        dtype: of the weights written; ``auto`` keeps each one's own.

    Returns:
        The dtype of the embedding written, by name.

    Raises:
        CheckpointError: if the adapter changes a weight that the base does not have.
    """
    config = check_config(base)
    was_tied = is_tied(config)
    files = weight_files(base)
    _check_all_are_there(files, delta, was_tied=was_tied)
    weight_map: dict[str, str] = {}
    num_bytes = num_parameters = 0
    stored = ""
    for file in files:
        tensors = _merged_shard(file, delta, was_tied=was_tied, dtype=dtype)
        save_file(tensors, output / file.name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file.name)
        num_bytes += sum(tensor.nbytes for tensor in tensors.values())
        num_parameters += sum(tensor.numel() for tensor in tensors.values())
        if EMBEDDING in tensors:
            stored = str(tensors[EMBEDDING].dtype).removeprefix("torch.")
    if (base / INDEX_FILE).is_file():
        metadata = {"total_size": num_bytes, "total_parameters": num_parameters}
        write_json(output / INDEX_FILE, {"metadata": metadata, "weight_map": weight_map}, indent=2)
    _write_configs(base, output, config, tied=was_tied and not delta.unties_head, dtype=dtype)
    return stored


def is_tied(config: JsonObject) -> bool:
    """Tell whether a Qwen3-VL configuration shares embedding and head (its default is not to)."""
    return bool(config.get("tie_word_embeddings", False))


def num_rows(base: Path) -> int:
    """Return the rows of a checkpoint's embedding table, from the file's header."""
    for file in weight_files(base):
        with safe_open(file, framework="pt") as handle:
            if EMBEDDING in handle.keys():  # noqa: SIM118 - a handle, not a mapping
                return handle.get_slice(EMBEDDING).get_shape()[0]
    raise CheckpointError(f"{base}: no weight {EMBEDDING}")


def _merged_shard(file: Path, delta: AdapterDelta, *, was_tied: bool, dtype: DTypeName) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    with safe_open(file, framework="pt") as handle:
        for name in handle.keys():  # noqa: SIM118 - a handle, not a mapping
            if was_tied and name == HEAD:
                continue  # some tied checkpoints store the head as well; the embedding is what counts
            weight = _cast(handle.get_tensor(name), dtype)
            tensors[name] = delta.apply(name, weight).contiguous()
            if name == EMBEDDING and was_tied and delta.unties_head:
                tensors[HEAD] = delta.apply(HEAD, weight).contiguous()
    return tensors


def _check_all_are_there(files: list[Path], delta: AdapterDelta, *, was_tied: bool) -> None:
    there = {name for file in files for name in tensor_names(file)}
    needed = {*delta.linear, *([] if delta.offset is None else [EMBEDDING, *([] if was_tied else [HEAD])])}
    if missing := sorted(needed - there):
        raise CheckpointError(
            f"{files[0].parent}: the adapter changes {len(missing)} weights that this base does not have, "
            f"e.g. {missing[0]}; give the base it was trained on"
        )


def _write_configs(base: Path, output: Path, config: JsonObject, *, tied: bool, dtype: DTypeName) -> None:
    changes: JsonObject = {"tie_word_embeddings": tied}
    parts: dict[str, JsonObject] = {}
    for part in ("text_config", "vision_config"):
        nested = config.get(part)
        if not isinstance(nested, dict):
            raise CheckpointError(f"{base / 'config.json'}: no {part}")
        parts[part] = dict(nested)  # pyright: ignore[reportUnknownArgumentType]
    parts["text_config"]["tie_word_embeddings"] = tied
    merged = {key: value for key, value in config.items() if key != "torch_dtype"} | changes
    if dtype != "auto":
        merged["dtype"] = dtype
        parts = {
            name: {key: value for key, value in part.items() if "dtype" not in key} for name, part in parts.items()
        }
    write_json(output / "config.json", merged | parts, indent=2)
    if (base / _GENERATION_CONFIG).is_file():
        write_text(output / _GENERATION_CONFIG, (base / _GENERATION_CONFIG).read_text(encoding="utf-8"))


def _cast(weight: Tensor, dtype: DTypeName) -> Tensor:
    return weight if dtype == "auto" or not weight.is_floating_point() else weight.to(getattr(torch, dtype))
