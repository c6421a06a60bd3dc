"""The files of a checkpoint directory: read and checked before any weight is loaded."""

import json
from pathlib import Path, PurePath
from typing import cast

from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, Qwen3VLConfig

from coordexp.errors import CheckpointError, summary

MODEL_TYPE = "qwen3_vl"
MOE_MODEL_TYPE = "qwen3_vl_moe"
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

JsonObject = dict[str, object]

_SMALL_FILES = (CONFIG_FILE, "tokenizer_config.json", "preprocessor_config.json")
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


def check_config(directory: Path) -> JsonObject:
    """Return ``config.json`` of a dense Qwen3-VL.

    Raises:
        CheckpointError: if it is missing, not JSON, or of another model.
    """
    file = directory / CONFIG_FILE
    config = read_json(file)
    found = config.get("model_type")
    if found == MOE_MODEL_TYPE:
        raise CheckpointError(
            f"{file}: model_type is {found!r}, a mixture of experts, whose experts are no linear layers that adapters "
            f"reach; expected {MODEL_TYPE!r}, a dense Qwen3-VL (2B, 4B, 8B, 32B)"
        )
    if found != MODEL_TYPE:
        raise CheckpointError(f"{file}: model_type is {found!r}; expected {MODEL_TYPE!r} (a dense Qwen3-VL)")
    return config


def model_config(directory: Path) -> Qwen3VLConfig:
    """Return the configuration of a dense Qwen3-VL as transformers understands it.

    Raises:
        CheckpointError: if it is missing, damaged, or of another model.
    """
    check_config(directory)
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{directory / CONFIG_FILE}: makes no configuration ({summary(error)})") from None
    assert isinstance(config, Qwen3VLConfig)
    return config


def weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint, each whole.

    Raises:
        CheckpointError: if there are none, or one is missing or cut short.
    """
    listed = weight_map(directory)
    if listed is None:
        files = [directory / WEIGHTS_FILE]
        _refuse_pickles(directory)
    else:
        files = [directory / name for name in sorted(set(listed.values()))]
        if lost := [file.name for file in files if not file.is_file()]:
            raise CheckpointError(
                f"{directory / INDEX_FILE}: names {lost[0]}, which is not there ({len(lost)} of {len(files)} shards "
                "are missing); expected every shard beside the index"
            )
    for file in files:
        tensor_names(file)
    return files


def weight_map(directory: Path) -> dict[str, str] | None:
    """Return the file name of each tensor as the index says; None where all weights are in one file.

    Raises:
        CheckpointError: if the index is damaged.
    """
    file = directory / INDEX_FILE
    # Where both are there, transformers reads the single file.
    if (directory / WEIGHTS_FILE).is_file() or not file.is_file():
        return None
    listed = read_json(file).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise CheckpointError(f"{file}: no weight_map; the index is damaged")
    files = {name: str(place) for name, place in cast("dict[str, object]", listed).items()}
    if away := sorted(place for place in files.values() if PurePath(place).name != place):
        raise CheckpointError(f"{file}: names the shard {away[0]!r}; expected a file beside the index")
    return files


def wanted_files(directory: Path) -> list[str]:
    """Return the names of the files that a checkpoint needs: configuration, tokenizer, processor and weights."""
    listed = weight_map(directory)
    return [*_SMALL_FILES, *([WEIGHTS_FILE] if listed is None else sorted(set(listed.values())))]


def tensor_names(file: Path) -> list[str]:
    """Return the names in a safetensors file, without reading its tensors.

    Raises:
        CheckpointError: if the file is missing or not whole.
    """
    if not file.is_file():
        raise CheckpointError(f"{file}: weights not found; expected safetensors")
    try:
        with safe_open(file, framework="pt") as handle:
            return list(handle.keys())
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: not a whole safetensors file ({error})") from None


def read_json(file: Path) -> JsonObject:
    """Read a JSON object.

    Raises:
        CheckpointError: if the file is missing or holds something else.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file}: not found; expected a checkpoint directory with {file.name}") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: not readable JSON ({error})") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: holds a {type(value).__name__}, expected an object")
    return cast("JsonObject", value)


def _refuse_pickles(directory: Path) -> None:
    pickled = next((name for name in _PICKLES if (directory / name).is_file()), None)
    if pickled is not None and not (directory / WEIGHTS_FILE).is_file():
        raise CheckpointError(
            f"{directory / pickled}: weights as a pickle, which can run code when it is read; expected safetensors "
            f"({WEIGHTS_FILE}, or shards and {INDEX_FILE})"
        )
