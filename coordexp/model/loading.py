"""Load a model from the package, a directory or the hub, with or without a trained adapter."""

import contextlib
import importlib.util
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from coordexp.coord_tokens.codec import int_to_token
from coordexp.coord_tokens.offset_adapter import DTypeName, install_coord_offset_adapter, reattach_coord_offset_hooks
from coordexp.coord_tokens.vocab import (
    STRUCTURE_TOKENS,
    CoordVocab,
    InitMethod,
    Structure,
    coord_vocab,
    expand_vocab,
)
from coordexp.errors import ConfigError, ResourceError
from coordexp.model.checkpoint.adapter import (
    AdapterInfo,
    TrainedBase,
    check_adapter_keys,
    naming_the_adapter,
    peft_folder,
    read_adapter,
)
from coordexp.model.checkpoint.directory import find_checkpoint, is_hub_id, library_errors
from coordexp.model.checkpoint.stored_model import StoredModel, load_stock, quiet
from coordexp.model.processor import Processor

_log = logging.getLogger(__name__)

AttnImplementation = Literal["sdpa", "eager", "flash_attention_2"]


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to use.

    Attributes:
        model: in evaluation mode; a PeftModel if an adapter was given.
        processor: tokenizer and image processor.
        vocab: ids of the coordinate vocabulary; None if the tokenizer was not expanded yet.
    """

    model: PreTrainedModel | PeftModel
    processor: Processor
    vocab: CoordVocab | None


def load(
    path_or_id: str | Path,
    adapter: str | Path | None = None,
    *,
    dtype: DTypeName = "auto",
    structure: Structure | None = None,
    attn_implementation: AttnImplementation = "sdpa",
    revision: str | None = None,
    device: torch.device | str | None = None,
    vocab_init: InitMethod | None = None,
    trainable: bool = False,
) -> LoadedModel:
    """Load a checkpoint and, on it, an adapter that training saved.

    Args:
        path_or_id: ``embedded`` (the tiny base in the package), a directory, or a hub id.
        adapter: a directory with ``adapter_model.safetensors``. The ids and tables of coord offsets are read from it.
        dtype: dtype of the weights. ``auto`` takes the one that the adapter was trained on, or without an adapter that
            of the checkpoint.
        structure: object markers; None recognises them by the tokenizer.
        attn_implementation: how attention is computed.
        revision: of a hub id; None takes the one that the adapter names.
        device: where to put the model; None leaves it on the CPU.
        vocab_init: how the rows of coord tokens start if the adapter needs them and the base has none; None takes what
            the adapter was trained with.
        trainable: whether the adapter stays trainable.

    Raises:
        CheckpointError: if base or adapter are missing, damaged, of another model, or do not fit.
        TokenizerError: if the vocabulary has other ids than the adapter.
        ConfigError: if the attention cannot be computed with this dtype.
        ResourceError: if the attention needs a package or a device that is not here.
    """
    check_attention(attn_implementation, dtype=dtype)
    info = None if adapter is None else read_adapter(adapter)
    trained = TrainedBase(None) if info is None else info.base
    if revision is None and trained.path == str(path_or_id):
        revision = trained.revision
    # Only if the adapter itself names this hub id is the adapter part of an error about it.
    is_named = trained.path == str(path_or_id) and is_hub_id(path_or_id)
    with naming_the_adapter(info) if info is not None and is_named else contextlib.nullcontext():
        directory = find_checkpoint(path_or_id, revision=revision)
    processor = Processor.from_directory(directory)
    StoredModel.of_headers(directory)
    model, _ = load_stock(
        directory, dtype=trained.dtype if dtype == "auto" else dtype, attn_implementation=attn_implementation
    )
    if is_hub_id(path_or_id):
        model.name_or_path = str(path_or_id)  # PEFT writes it; it would be a path in the cache of this machine
    # None also if the base has coord tokens but lacks the markers that its adapter was trained for.
    vocab = _vocab_of(processor.tokenizer, structure=structure or trained.structure)
    if vocab is None and trained.structure is not None:
        vocab = expand_vocab(
            model,
            processor.tokenizer,
            init=vocab_init or trained.vocab_init,
            structure=structure or trained.structure,
        )
    wrapped = model if info is None else load_adapter(model, processor, info, trainable=trainable)
    wrapped.eval()
    if device is not None:
        nn.Module.to(wrapped, device)
    _log.debug("loaded %s in %s on %s", directory, model.dtype, model.device)
    return LoadedModel(model=wrapped, processor=processor, vocab=vocab)


def check_attention(implementation: AttnImplementation, *, dtype: DTypeName = "auto", elsewhere: bool = False) -> None:
    """Refuse FlashAttention if it cannot run, before anything else is done.

    transformers would look for a replacement on the hub, or stop long after the data was prepared.

    Args:
        implementation: how attention is to be computed.
        dtype: dtype of the model.
        elsewhere: whether the model runs on other machines, such as workers, so that this one needs no GPU.

    Raises:
        ConfigError: if it cannot be computed with this dtype.
        ResourceError: if the package or a GPU is missing.
    """
    if implementation != "flash_attention_2":
        return
    if dtype == "float32":
        raise ConfigError(
            "model.attn_implementation: flash_attention_2 computes in half precision only, but model.dtype is float32; "
            "set model.dtype: bfloat16, or model.attn_implementation: sdpa"
        )
    if importlib.util.find_spec("flash_attn") is None:
        raise ResourceError(
            "model.attn_implementation: flash_attention_2 needs the package flash-attn, which is not installed; "
            "install it, or set model.attn_implementation: sdpa"
        )
    if not elsewhere and not torch.cuda.is_available():
        raise ResourceError(
            "model.attn_implementation: flash_attention_2 needs a CUDA device, and there is none here; "
            "set model.attn_implementation: sdpa"
        )


def _vocab_of(tokenizer: PreTrainedTokenizerBase, *, structure: Structure | None) -> CoordVocab | None:
    """Return the coordinate vocabulary of a tokenizer; None if it lacks a token of it."""
    ids = tokenizer.get_vocab()
    if structure is None:
        structure = "spec" if STRUCTURE_TOKENS["spec"][0] in ids else "native"
    needed_tokens = (int_to_token(0), *STRUCTURE_TOKENS[structure])
    if any(token is not None and token not in ids for token in needed_tokens):
        return None
    return coord_vocab(tokenizer, structure=structure)


def load_adapter(model: PreTrainedModel, processor: Processor, info: AdapterInfo, *, trainable: bool) -> PeftModel:
    """Put a saved adapter, with its coord offsets, on a model. Raises the errors of :func:`load`."""
    if info.offset is not None:
        install_coord_offset_adapter(
            model,
            coord_ids=info.offset.coord_ids or coord_vocab(processor.tokenizer).coord_ids,
            tie_head=info.offset.tie_head,
            dtype=info.offset.dtype,
            tokenizer=processor.tokenizer,
        )
    with (
        library_errors(f"{info.directory}: the adapter does not fit the base; {info.way_on}"),
        quiet(),
        peft_folder(info) as directory,
    ):
        wrapped = PeftModel.from_pretrained(model, str(directory), is_trainable=trainable, local_files_only=True)
    check_adapter_keys(info, wrapped)
    reattach_coord_offset_hooks(wrapped)
    return wrapped
