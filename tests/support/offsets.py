"""Small Qwen3-VLs with coord-offset adapters, for the tests of the adapter."""

import copy
import functools

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedTokenizerBase, Qwen3VLForConditionalGeneration

from coordexp.coord_tokens.offset_adapter import CoordOffsetAdapter, active_offset, install_coord_offset_adapter
from coordexp.coord_tokens.vocab import expand_vocab
from coordexp.model.lora import apply_tuning
from coordexp.model.tiny.parts import build_model, build_tokenizer

FIRST = 641  # of the tiny tokenizer's coord ids
COORD_IDS = range(FIRST, FIRST + 1000)
SCATTERED = [FIRST + 7, FIRST + 3, FIRST + 900]  # neither contiguous nor ascending
IDS = torch.tensor([[5, 6, FIRST + 3, FIRST + 999, 7, FIRST + 7, FIRST - 1]])
TIES = [(True, True), (True, False), (False, True), (False, False)]  # of the model, of the adapter
QUICK = [(*ties, tuning) for ties, tuning in zip(TIES, ("lora", "dora", "dora", "lora"), strict=True)]
SLOW = [
    pytest.param(*ties, tuning, marks=pytest.mark.slow)
    for ties, tuning in zip(TIES, ("dora", "lora", "lora", "dora"), strict=True)
]


@functools.cache
def tokenizer() -> PreTrainedTokenizerBase:
    """Return the expanded tiny tokenizer."""
    expanded = build_tokenizer()
    expand_vocab(build_model(expanded), expanded)
    return expanded


@functools.cache
def _base(tied: bool) -> Qwen3VLForConditionalGeneration:
    own = build_tokenizer()
    model = build_model(own, tie_word_embeddings=tied).eval()
    expand_vocab(model, own, init="numeric")
    return model


def fresh(tied: bool = True) -> Qwen3VLForConditionalGeneration:
    """Return a base of one's own, without an adapter."""
    return copy.deepcopy(_base(tied))


def installed(tied: bool = True, **options: object) -> Qwen3VLForConditionalGeneration:
    """Return a base with a zero adapter."""
    model = fresh(tied)
    install_coord_offset_adapter(model, **({"coord_ids": COORD_IDS} | options))
    return model


def wrapped(model: Qwen3VLForConditionalGeneration, **settings: object) -> PeftModel:
    """Wrap a model for training, vision tower and aligner included."""
    defaults = {"tuning": "lora", "rank": 4, "alpha": 8.0, "dropout": 0.0, "vision": True, "seed": 0}
    return apply_tuning(model, **(defaults | settings)).eval()


@torch.no_grad()
def randomise(model_or_adapter: torch.nn.Module, *, scale: float = 0.1, seed: int = 3) -> CoordOffsetAdapter:
    """Fill the active offsets and return them."""
    is_adapter = isinstance(model_or_adapter, CoordOffsetAdapter)
    adapter = model_or_adapter if is_adapter else active_offset(model_or_adapter)
    generator = torch.Generator().manual_seed(seed)
    for table in adapter.parameters():
        table.copy_(torch.randn(table.shape, generator=generator) * scale)
    return adapter


@torch.no_grad()
def logits(model: torch.nn.Module, ids: Tensor = IDS) -> Tensor:
    """Return what a model says on text alone."""
    return model(input_ids=ids, use_cache=False).logits
