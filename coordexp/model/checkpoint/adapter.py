"""A trained adapter on disk: save it, read what it says about itself, and check that all of it reached a model."""

import contextlib
import shutil
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn, cast

import torch
from peft import PeftModel, get_peft_model_state_dict
from pydantic import TypeAdapter, ValidationError
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.dtypes import DTypeName
from coordexp.coord_tokens.offset_adapter import ADAPTER_NAME, reattach_coord_offset_hooks
from coordexp.coord_tokens.vocab import InitMethod, Structure
from coordexp.errors import CheckpointError
from coordexp.files import first_problem, lfs_problem
from coordexp.model.checkpoint.directory import (
    CONFIG_FILE,
    EMBEDDED,
    JsonObject,
    is_hub_id,
    read_json,
    refuse_lfs_pointers,
    tensor_names,
)
from coordexp.model.checkpoint.trained_with import TrainedWith, parse_trained_with

ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"

_PICKLE = "adapter_model.bin"
_ROOT = "base_model.model."  # PEFT's names begin with it
_MADE_BY = "coordexp_base"
_TRAINED_WITH = "coordexp_trained_with"


@dataclass(frozen=True)
class OffsetInfo:
    """The coord offsets inside a saved adapter; ``coord_ids`` are None if the file does not say."""

    coord_ids: list[int] | None
    num_ids: int
    tie_head: bool
    dtype: torch.dtype


@dataclass(frozen=True)
class TrainedBase:
    """The checkpoint that an adapter was trained on, and how training changed it first.

    Attributes:
        path: ``embedded``, a directory or a hub id; None if the adapter does not say.
        revision: of a hub id.
        dtype: dtype that its weights were cast to; ``auto`` if they were left as stored.
        vocab_init: how the rows of coord tokens started, if it had none.
        structure: object markers that it was expanded for; None if it was not expanded, or the adapter does not say.
    """

    path: str | None
    revision: str | None = None
    dtype: DTypeName = "auto"
    vocab_init: InitMethod = "numeric"
    structure: Structure | None = None


_TRAINED_BASE = TypeAdapter(TrainedBase)


@dataclass(frozen=True)
class AdapterInfo:
    """A saved PEFT adapter: its configuration, what its weights file holds, and what it was trained on and with.

    Attributes:
        directory: its folder.
        config: ``adapter_config.json``.
        keys: names of its tensors, as PEFT names them.
        offset: its coord offsets; None if it has none.
        base: the checkpoint that it was trained on.
        trained_with: images and prompts of training; None if it does not say.
        prefix: what a wrapper (DDP, torch.compile) put before each key in the file; mostly "".
    """

    directory: Path
    config: JsonObject
    keys: tuple[str, ...]
    offset: OffsetInfo | None
    base: TrainedBase
    trained_with: TrainedWith | None = None
    prefix: str = ""

    def tensors(self) -> dict[str, Tensor]:
        """Read its tensors, as PEFT names them."""
        stored = load_file(self.directory / ADAPTER_WEIGHTS)
        return {key.removeprefix(self.prefix): tensor for key, tensor in stored.items()}

    @property
    def way_on(self) -> str:
        """The end of an error about a base that does not fit."""
        advice = "give the one that it was trained on"
        return f"{advice}, {self.base.path}" if self.base.path else advice


def read_adapter(directory: str | Path) -> AdapterInfo:
    """Read what a saved LoRA or DoRA adapter says about itself.

    Raises:
        CheckpointError: if it is missing, damaged, a pickle, or of another kind.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: no such adapter directory")
    refuse_lfs_pointers(directory)
    file = directory / ADAPTER_CONFIG
    config = read_json(file)
    if config.get("peft_type") != "LORA":
        raise CheckpointError(f"{directory}: peft_type is {config.get('peft_type')!r}; expected 'LORA' (LoRA or DoRA)")
    if config.get("megatron_config"):  # PEFT would import the module that megatron_core names
        raise CheckpointError(f"{file}: megatron_config is set; expected a plain LoRA or DoRA")
    weights = directory / ADAPTER_WEIGHTS
    if not weights.is_file() and (directory / _PICKLE).is_file():
        _refuse_pickle(directory)
    stored_keys = tensor_names(weights)
    _check_shapes(weights, stored_keys, config)
    prefix = ""
    if stored_keys and all(_ROOT in key for key in stored_keys):
        prefix = stored_keys[0].partition(_ROOT)[0]
    offset = _offset_info(weights, stored_keys)

    mapping = config.get("auto_mapping")
    notes = cast("JsonObject", mapping) if isinstance(mapping, dict) else {}  # what name_base wrote
    trained_with = None
    if _TRAINED_WITH in notes:
        trained_with = parse_trained_with(notes[_TRAINED_WITH], file)
    return AdapterInfo(
        directory,
        config,
        keys=tuple(key.removeprefix(prefix) for key in stored_keys),
        offset=offset,
        base=_trained_base(file, config, notes.get(_MADE_BY), offset),
        trained_with=trained_with,
        prefix=prefix,
    )


def _refuse_pickle(directory: Path) -> NoReturn:
    pointer = lfs_problem(directory / _PICKLE)
    if pointer:
        raise CheckpointError(pointer)
    convert = (
        "python -c 'import torch; from safetensors.torch import save_file; "
        f'save_file(torch.load("{_PICKLE}", weights_only=True), "{ADAPTER_WEIGHTS}")\''
    )
    raise CheckpointError(f"{directory}: {_PICKLE} is a pickle, which is not read; convert it there: {convert}")


def _trained_base(file: Path, config: JsonObject, made_by: object, offset: OffsetInfo | None) -> TrainedBase:
    """Return the base that an adapter names, and how training made it; ``file`` names the configuration in errors."""
    values = cast("JsonObject", made_by) if isinstance(made_by, dict) else {}
    if not isinstance(made_by, dict) and offset is not None:
        # PEFT alone saved this adapter. More rows than bins are those of the markers that only spec adds.
        values["structure"] = "spec" if offset.num_ids > NUM_BINS else "native"
    path = config.get("base_model_name_or_path") or None
    revision = config.get("revision") or None
    try:
        return _TRAINED_BASE.validate_python({**values, "path": path, "revision": revision})
    except ValidationError as error:
        raise CheckpointError(
            f"{file}: expected what the adapter was trained on, as training wrote it ({first_problem(error)})"
        ) from None


@contextlib.contextmanager
def peft_folder(info: AdapterInfo) -> Generator[Path]:
    """Yield a folder that PEFT can read: the adapter's own, or a temporary copy whose tensors have PEFT's names."""
    if not info.prefix:
        yield info.directory
        return
    with tempfile.TemporaryDirectory(prefix="coordexp_adapter.") as scratch:
        shutil.copy(info.directory / ADAPTER_CONFIG, scratch)
        save_file(info.tensors(), Path(scratch, ADAPTER_WEIGHTS), {"format": "pt"})
        yield Path(scratch)


def is_adapter(directory: Path) -> bool:
    """Return whether a folder holds an adapter and no model of its own."""
    return (directory / ADAPTER_CONFIG).is_file() and not (directory / CONFIG_FILE).is_file()


def named_base(directory: Path) -> str:
    """Return the checkpoint that an adapter was trained on, as it names it.

    Raises:
        CheckpointError: if the adapter does not name one, or names a folder that is not on this machine.
    """
    base = read_adapter(directory).base.path
    if base is None:
        raise CheckpointError(f"{directory} does not name its base; give the checkpoint it was trained on with --base")
    if base != EMBEDDED and not is_hub_id(base) and not Path(base).expanduser().is_dir():
        raise CheckpointError(
            f"{directory}: was trained on {base}, which is not on this machine; give that checkpoint, wherever it is "
            "here, with --base"
        )
    return base


@contextlib.contextmanager
def naming_the_adapter(info: AdapterInfo) -> Generator[None]:
    """Name the adapter in the error of a base that was not found.

    The adapter names its base itself, perhaps by a path of another machine that looks like a hub id. Without the
    adapter's name a user would not know who asked the hub for it.
    """
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {info.directory} was trained on it: give a copy of it with --base") from error


def name_base(model: PeftModel, base: TrainedBase, trained_with: TrainedWith | None = None) -> None:
    """Write into a model's PEFT configurations what its adapters were trained on and with.

    PEFT would name the folder that the weights were read from, which in a run is the run's own expanded copy. How that
    copy was made goes to ``auto_mapping``, where PEFT keeps what helps to find the base. PEFT does not read it if a
    task type is set.

    Args:
        model: the adapted model; the notes go with every adapter that is saved from it.
        base: the checkpoint as the user gave it, and how training changed it.
        trained_with: images and prompts of training.
    """
    made_by = {"dtype": base.dtype, "vocab_init": base.vocab_init, "structure": base.structure}
    for config in model.peft_config.values():
        config.base_model_name_or_path = base.path
        config.revision = base.revision
        config.auto_mapping = {_MADE_BY: made_by}
        if trained_with is not None:
            config.auto_mapping[_TRAINED_WITH] = asdict(trained_with)


def save_adapter(model: PeftModel, directory: str | Path, *, state_dict: dict[str, Tensor] | None = None) -> None:
    """Write adapter and offsets with PEFT, and nothing of the base.

    By default PEFT compares vocabulary sizes with the base on the hub, and stores the whole embedding table beside the
    adapter if the base was resized.

    Args:
        model: the adapted model.
        directory: where the adapter goes.
        state_dict: weights to save instead of the model's own, such as those that ZeRO gathered; None for its own.
    """
    reattach_coord_offset_hooks(model)
    model.save_pretrained(str(directory), state_dict=state_dict, save_embedding_layers=False)
    (Path(directory) / "README.md").unlink(missing_ok=True)  # PEFT's empty model card


def check_adapter_keys(info: AdapterInfo, wrapped: PeftModel) -> None:
    """Raise a CheckpointError if the adapter lacks a tensor of the model, or the reverse. PEFT would only warn."""
    expected = set(get_peft_model_state_dict(wrapped, save_embedding_layers=False))
    different = sorted(expected.symmetric_difference(info.keys))
    if different:
        raise CheckpointError(
            f"{info.directory}: the adapter does not fit the base: {len(different)} tensors are on one side only, "
            f"e.g. {different[0]}; {info.way_on}"
        )


def _check_shapes(file: Path, keys: Sequence[str], config: JsonObject) -> None:
    """Raise a CheckpointError for empty tensors, and for LoRA tables of another rank than the configuration names."""
    ranks = {config.get("r")}
    pattern = config.get("rank_pattern")
    if isinstance(pattern, dict):
        ranks.update(cast("JsonObject", pattern).values())
    with safe_open(file, framework="pt") as handle:
        shapes = {key: handle.get_slice(key).get_shape() for key in keys}
    empty = [key for key, shape in shapes.items() if 0 in shape]
    if empty:
        raise CheckpointError(
            f"{file}: {len(empty)} of {len(keys)} tensors are empty, e.g. {empty[0]}: DeepSpeed ZeRO-3 saved a rank's "
            "share; gather the weights with zero_to_fp32.py of the training's checkpoint, or save again with "
            "stage3_gather_16bit_weights_on_model_save: true"
        )
    for key, shape in shapes.items():
        if key.endswith("lora_A.weight") and shape and shape[0] not in ranks:
            raise CheckpointError(
                f"{file}: {key} is {shape}, and {ADAPTER_CONFIG} says r: {config.get('r')}; they do not belong together"
            )


def _offset_info(file: Path, keys: Sequence[str]) -> OffsetInfo | None:
    """Return what a weights file holds of coord offsets; None if nothing."""
    offset_keys = [key for key in keys if f".{ADAPTER_NAME}." in f".{key}"]
    key_by_name = {key.rsplit(".", 1)[1]: key for key in offset_keys}
    if "embed_offset" not in key_by_name:
        return None
    with safe_open(file, framework="pt") as handle:
        table = handle.get_tensor(key_by_name["embed_offset"])
        ids = handle.get_tensor(key_by_name["coord_ids"]) if "coord_ids" in key_by_name else None
    return OffsetInfo(
        coord_ids=None if ids is None else ids.tolist(),
        num_ids=table.shape[0],
        tie_head="head_offset" not in key_by_name,
        dtype=table.dtype,
    )
