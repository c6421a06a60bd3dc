"""Checkpoints on disk: find them, and tell what is wrong with them before any weight is loaded."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import cast

from huggingface_hub import constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from peft import PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError, safe_open
from torch import Tensor

from coordexp.coord_tokens.offset_adapter import ADAPTER_NAME
from coordexp.errors import CheckpointError

MODEL_TYPE = "qwen3_vl"
MOE_MODEL_TYPE = "qwen3_vl_moe"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"

JsonObject = dict[str, object]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*/[\w.\-]+")
_HUB_SMALL_FILES = ["*.json", "*.jinja", "*.txt"]
_HUB_FILES = [*_HUB_SMALL_FILES, "*.safetensors"]
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_HUB_ERRORS = (HfHubHTTPError, HFValidationError, OSError)  # the offline and not-found errors are OSErrors too


@dataclass(frozen=True)
class OffsetInfo:
    """The coord-offset adapter inside a saved adapter.

    Attributes:
        coord_ids: the ids of its rows; None if the file does not say.
        num_ids: rows.
        tie_head: one table, or two.
        dtype: of the tables, as torch names it.
    """

    coord_ids: list[int] | None
    num_ids: int
    tie_head: bool
    dtype: str


@dataclass(frozen=True)
class AdapterInfo:
    """A saved PEFT adapter: its configuration and what its weights file holds."""

    directory: Path
    config: JsonObject
    keys: tuple[str, ...]
    offset: OffsetInfo | None

    @property
    def base(self) -> str | None:
        """The base checkpoint it was trained on, as its configuration says."""
        base = self.config.get("base_model_name_or_path")
        return base if isinstance(base, str) and base else None


def find_checkpoint(path_or_id: str | Path, *, revision: str | None = None, weights: bool = True) -> Path:
    """Return the directory of a Qwen3-VL checkpoint, downloading a hub id, with all its files checked.

    Args:
        path_or_id: a directory or a hub id.
        revision: of a hub id.
        weights: also fetch and check the weights; without, configuration, tokenizer and processor.

    Raises:
        CheckpointError: if it is missing, damaged, or not a dense Qwen3-VL, or ``revision`` would have no effect.
    """
    directory = Path(path_or_id).expanduser()
    if not directory.exists() and _HUB_ID.fullmatch(str(path_or_id)):
        directory = _download(str(path_or_id), revision=revision, files=_HUB_FILES if weights else _HUB_SMALL_FILES)
    elif directory.is_dir():
        if revision is not None:
            raise CheckpointError(f"{path_or_id}: a local directory has no revision {revision!r}; leave it out")
    else:
        raise CheckpointError(
            f"{path_or_id}: no such checkpoint; expected embedded, a directory or a hub id (owner/name)"
        )
    check_config(directory)
    if weights:
        weight_files(directory)
    return directory


def check_config(directory: Path) -> JsonObject:
    """Return ``config.json`` of a dense Qwen3-VL.

    Raises:
        CheckpointError: if it is missing, not JSON, or of another model.
    """
    file = directory / "config.json"
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


def weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint, each whole.

    Raises:
        CheckpointError: if there are none, or one is missing or cut short.
    """
    # Where both are there, transformers reads the single file.
    if (directory / WEIGHTS_FILE).is_file() or not (directory / INDEX_FILE).is_file():
        files = [directory / WEIGHTS_FILE]
        _refuse_pickles(directory)
    else:
        weight_map = read_json(directory / INDEX_FILE).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{directory / INDEX_FILE}: no weight_map; the index is damaged")
        names = sorted({str(name) for name in cast("dict[str, object]", weight_map).values()})
        if away := [name for name in names if PurePath(name).name != name]:
            raise CheckpointError(
                f"{directory / INDEX_FILE}: names the shard {away[0]!r}; expected a file beside the index"
            )
        files = [directory / name for name in names]
        if lost := [file.name for file in files if not file.is_file()]:
            raise CheckpointError(
                f"{directory / INDEX_FILE}: names {lost[0]}, which is not there ({len(lost)} of {len(files)} shards "
                "are missing); expected every shard beside the index"
            )
    for file in files:
        tensor_names(file)
    return files


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


def read_adapter(directory: str | Path) -> AdapterInfo:
    """Read what a saved adapter says about itself.

    Raises:
        CheckpointError: if a file is missing or damaged, or it is no LoRA or DoRA adapter.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: no such adapter directory")
    config = read_json(directory / ADAPTER_CONFIG)
    if config.get("peft_type") != "LORA":
        raise CheckpointError(f"{directory}: peft_type is {config.get('peft_type')!r}; expected 'LORA' (LoRA or DoRA)")
    if config.get("megatron_config"):  # PEFT would import the module that megatron_core names
        raise CheckpointError(f"{directory / ADAPTER_CONFIG}: megatron_config is set; expected a plain LoRA or DoRA")
    file = directory / ADAPTER_WEIGHTS
    keys = tensor_names(file)
    return AdapterInfo(directory=directory, config=config, keys=tuple(keys), offset=_offset_info(file, keys))


def save_adapter(model: PeftModel, directory: str | Path, *, state_dict: dict[str, Tensor] | None = None) -> None:
    """Write adapter and offsets with PEFT, and nothing of the base.

    PEFT's own default compares vocabulary sizes with the base on the hub, and on a resized one
    stores the whole embedding table beside the adapter.

    Args:
        model: the adapted model.
        directory: where to; made if it is not there.
        state_dict: the weights, where they were gathered from several ranks; None for the model's own.
    """
    model.save_pretrained(str(directory), state_dict=state_dict, save_embedding_layers=False)


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


def check_adapter_keys(info: AdapterInfo, wrapped: PeftModel) -> None:
    """Check that a saved adapter has a tensor for each place in the model, and a place for each tensor.

    PEFT itself loads what fits and only warns of the rest.

    Raises:
        CheckpointError: if something is on one side only.
    """
    expected = set(get_peft_model_state_dict(wrapped, save_embedding_layers=False))
    if different := sorted(expected.symmetric_difference(info.keys)):
        raise CheckpointError(
            f"{info.directory}: the adapter does not fit the base: {len(different)} tensors are on one side only, "
            f"e.g. {different[0]}"
        )


def first_line(error: Exception) -> str:
    """Return kind and first line of another library's error, to be put into a sentence of ours."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"


def _refuse_pickles(directory: Path) -> None:
    pickled = next((name for name in _PICKLES if (directory / name).is_file()), None)
    if pickled is not None and not (directory / WEIGHTS_FILE).is_file():
        raise CheckpointError(
            f"{directory / pickled}: weights as a pickle, which can run code when it is read; expected safetensors "
            f"({WEIGHTS_FILE}, or shards and {INDEX_FILE})"
        )


def _offset_info(file: Path, keys: Sequence[str]) -> OffsetInfo | None:
    by_name = {key.rsplit(".", 1)[1]: key for key in keys if f".{ADAPTER_NAME}." in f".{key}"}
    if "embed_offset" not in by_name:
        return None
    with safe_open(file, framework="pt") as handle:
        table = handle.get_tensor(by_name["embed_offset"])
        ids = handle.get_tensor(by_name["coord_ids"]).tolist() if "coord_ids" in by_name else None
    return OffsetInfo(
        coord_ids=ids,
        num_ids=table.shape[0],
        tie_head="head_offset" not in by_name,
        dtype=str(table.dtype).removeprefix("torch."),
    )


def _download(hub_id: str, *, revision: str | None, files: list[str]) -> Path:
    try:
        # The configuration first: another model must not cost the download of its weights.
        config = hf_hub_download(hub_id, "config.json", revision=revision)
        check_config(Path(config).parent)
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=files))
    except _HUB_ERRORS as error:
        name = hub_id if revision is None else f"{hub_id} at revision {revision}"
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if isinstance(error, LocalEntryNotFoundError):  # its own words are three sentences
            why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
            reason = f"it is not in the cache {constants.HF_HUB_CACHE}, and {why}"
        raise CheckpointError(f"{name}: no such directory, and the hub does not give it ({reason})") from None
