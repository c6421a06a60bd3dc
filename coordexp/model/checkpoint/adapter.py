"""A trained adapter on disk: save it, read what it says of itself, and check that all of it reached a model."""

import contextlib
import shutil
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

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
_ROOT = "base_model.model."  # of PEFT's names
_MADE_BY = "coordexp_base"
_TRAINED_WITH = "coordexp_trained_with"


@dataclass(frozen=True)
class OffsetInfo:
    """The coord-offset adapter inside a saved one; its ``coord_ids`` are None if the file does not say."""

    coord_ids: list[int] | None
    num_ids: int
    tie_head: bool
    dtype: torch.dtype


@dataclass(frozen=True)
class TrainedBase:
    """The checkpoint an adapter was trained on, and what training made of it first.

    Attributes:
        path: ``embedded``, a directory or a hub id; None if the adapter does not say.
        dtype: what its weights were cast to; ``auto`` if they were left as stored.
        vocab_init: how the rows of coord tokens started, if it had none.
        structure: for which object markers it was expanded; None if it was not, or the adapter does not say.
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
        keys: of its tensors, as PEFT names them.
        prefix: what a wrapper (DDP, torch.compile) put before each of them in the file; mostly "".
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
        return f"give the one that it was trained on{f', {self.base.path}' if self.base.path else ''}"


def read_adapter(directory: str | Path) -> AdapterInfo:
    """Read what a saved LoRA or DoRA adapter says about itself."""
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
        pointer = lfs_problem(directory / _PICKLE)
        if pointer:
            raise CheckpointError(pointer)
        convert = (
            "python -c 'import torch; from safetensors.torch import save_file; "
            f'save_file(torch.load("{_PICKLE}", weights_only=True), "{ADAPTER_WEIGHTS}")\''
        )
        raise CheckpointError(f"{directory}: {_PICKLE} is a pickle, which is not read; convert it there: {convert}")
    stored = tensor_names(weights)
    _check_shapes(weights, stored, config)
    prefix = stored[0].partition(_ROOT)[0] if stored and all(_ROOT in key for key in stored) else ""
    offset = _offset_info(weights, stored)
    mapping = config.get("auto_mapping")
    ours = cast("JsonObject", mapping) if isinstance(mapping, dict) else {}
    made_by = ours.get(_MADE_BY)
    if not isinstance(made_by, dict):  # an adapter of PEFT's own making
        made_by = {"structure": None if offset is None else "spec" if offset.num_ids > NUM_BINS else "native"}
    names = {"path": config.get("base_model_name_or_path") or None, "revision": config.get("revision") or None}
    try:
        base = _TRAINED_BASE.validate_python({**made_by, **names})
    except ValidationError as error:
        raise CheckpointError(
            f"{file}: expected what the adapter was trained on, as training wrote it ({first_problem(error)})"
        ) from None
    trained_with = parse_trained_with(ours[_TRAINED_WITH], file) if _TRAINED_WITH in ours else None
    keys = tuple(key.removeprefix(prefix) for key in stored)
    return AdapterInfo(directory, config, keys, offset, base, trained_with, prefix)


@contextlib.contextmanager
def peft_folder(info: AdapterInfo) -> Generator[Path]:
    """Yield a folder that PEFT reads: the adapter's own, or for a while a copy whose tensors have PEFT's names."""
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
    """Say of a base that the hub does not give who asks for it; a path of another machine may look like a hub id."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {info.directory} was trained on it: give a copy of it with --base") from error


def name_base(model: PeftModel, base: TrainedBase, trained_with: TrainedWith | None = None) -> None:
    """Make an adapted model's adapters say, wherever they are saved, what they were trained on and with.

    PEFT itself names the folder that the weights were read from, which in a run is the run's own expanded copy. What
    the copy was made by stands in ``auto_mapping``, PEFT's place for what helps to find the base; with a task type PEFT
    does not read it.
    """
    made_by = {"dtype": base.dtype, "vocab_init": base.vocab_init, "structure": base.structure}
    for config in model.peft_config.values():
        config.base_model_name_or_path, config.revision = base.path, base.revision
        config.auto_mapping = {_MADE_BY: made_by}
        if trained_with is not None:
            config.auto_mapping[_TRAINED_WITH] = asdict(trained_with)


def save_adapter(model: PeftModel, directory: str | Path, *, state_dict: dict[str, Tensor] | None = None) -> None:
    """Write adapter and offsets with PEFT, and nothing of the base.

    PEFT's own default compares vocabulary sizes with the base on the hub, and on a resized one
    stores the whole embedding table beside the adapter. ``state_dict`` takes the place of the model's own weights.
    """
    reattach_coord_offset_hooks(model)
    model.save_pretrained(str(directory), state_dict=state_dict, save_embedding_layers=False)
    (Path(directory) / "README.md").unlink(missing_ok=True)  # PEFT's empty model card


def check_adapter_keys(info: AdapterInfo, wrapped: PeftModel) -> None:
    """Refuse an adapter that lacks a tensor for a place in the model, or the reverse: PEFT would only warn."""
    expected = set(get_peft_model_state_dict(wrapped, save_embedding_layers=False))
    if different := sorted(expected.symmetric_difference(info.keys)):
        raise CheckpointError(
            f"{info.directory}: the adapter does not fit the base: {len(different)} tensors are on one side only, "
            f"e.g. {different[0]}; {info.way_on}"
        )


def _check_shapes(file: Path, keys: Sequence[str], config: JsonObject) -> None:
    """Refuse empty tensors, and tables of other ranks than the configuration names."""
    pattern = config.get("rank_pattern")
    ranks = {config.get("r"), *(cast("dict[str, object]", pattern).values() if isinstance(pattern, dict) else ())}
    with safe_open(file, framework="pt") as handle:
        shapes = {key: handle.get_slice(key).get_shape() for key in keys}
    if empty := [key for key, shape in shapes.items() if 0 in shape]:
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
    by_name = {key.rsplit(".", 1)[1]: key for key in keys if f".{ADAPTER_NAME}." in f".{key}"}
    if "embed_offset" not in by_name:
        return None
    with safe_open(file, framework="pt") as handle:
        table = handle.get_tensor(by_name["embed_offset"])
        ids = handle.get_tensor(by_name["coord_ids"]) if "coord_ids" in by_name else None
    return OffsetInfo(
        coord_ids=None if ids is None else ids.tolist(),
        num_ids=table.shape[0],
        tie_head="head_offset" not in by_name,
        dtype=table.dtype,
    )
