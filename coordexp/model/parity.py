"""Does a checkpoint on disk say what a model said? Compare logits on real input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText, PreTrainedModel

from coordexp.coord_tokens.codec import NUM_BINS, int_to_token
from coordexp.coord_tokens.offset_adapter import DTypeName, inner_model
from coordexp.coord_tokens.vocab import STRUCTURE_TOKENS
from coordexp.data.prompt import DEFAULT_PROMPT
from coordexp.data.shapes import CATEGORIES, draw_scene
from coordexp.errors import CheckpointError
from coordexp.model.processor import Message, Processor
from coordexp.model.quiet import quiet

Sample = Mapping[str, Tensor]

_BIN_STRIDE = 61  # 17 bins over the whole range, shared with no power of two
# Of the largest logit. Rounding of the stored weights, then of every activation: bfloat16 keeps 8 bits, float16 11.
_STORED_TOLERANCE = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}
_COMPUTE_TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Agreement:
    """How well two models agree.

    Attributes:
        max_abs_diff: largest difference of a logit.
        max_abs_logit: largest logit.
        tolerance: what ``max_abs_diff`` has to stay below.
        tie_word_embeddings: whether the checkpoint shares embedding and head.
    """

    max_abs_diff: float
    max_abs_logit: float
    tolerance: float
    tie_word_embeddings: bool

    @property
    def holds(self) -> bool:
        """Whether the difference is finite and within the tolerance."""
        return self.max_abs_diff <= self.tolerance


@dataclass(frozen=True)
class Reference:
    """What a model says on samples, to hold a checkpoint against.

    Attributes:
        samples: model inputs.
        logits: ``[B, L, V]`` of each sample, on the CPU.
        dtype: in which the model computed.
        device: where it did.
    """

    samples: Sequence[Sample]
    logits: Sequence[Tensor]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, model: nn.Module, samples: Sequence[Sample]) -> "Reference":
        """Run ``model`` on ``samples``; its training mode is restored."""
        inner = inner_model(model)
        return cls(samples, _logits(model, samples), inner.dtype, inner.device)

    def against(self, checkpoint: Path, *, stored: str) -> Agreement:
        """Load ``checkpoint`` with plain transformers, as anyone would, and compare.

        Args:
            checkpoint: a directory.
            stored: dtype of its weights, by name.

        Raises:
            CheckpointError: if it lacks weights or holds others than the model has.
        """
        with quiet():
            model, report = cast(
                "tuple[PreTrainedModel, dict[str, set[str]]]",
                AutoModelForImageTextToText.from_pretrained(
                    checkpoint, dtype=self.dtype, local_files_only=True, output_loading_info=True
                ),
            )
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if report[kind]:
                raise CheckpointError(
                    f"the merged checkpoint has {kind.replace('_', ' ')}: {sorted(map(str, report[kind]))[:3]}"
                )
        nn.Module.to(model, self.device)
        logits = _logits(model, self.samples)
        head = model.get_output_embeddings()
        largest = max(float(one.abs().max()) for one in self.logits)
        relative = max(_STORED_TOLERANCE[stored], _COMPUTE_TOLERANCE[dtype_name(self.dtype)])
        return Agreement(
            max_abs_diff=max(_largest_difference(a, b) for a, b in zip(self.logits, logits, strict=True)),
            max_abs_logit=largest,
            tolerance=relative * largest,
            tie_word_embeddings=head is not None and head.weight is model.get_input_embeddings().weight,
        )


def default_samples(processor: Processor) -> list[Sample]:
    """Return a generated picture with a prompt and an answer in coord tokens, if there are any."""
    picture, shapes = draw_scene(np.random.default_rng(7))
    messages: list[Message] = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": DEFAULT_PROMPT}]},
    ]
    prompt = processor.apply_chat_template(messages, add_generation_prompt=True)
    return [processor(text=prompt + _answer(processor, CATEGORIES[shapes[0].category]), images=picture)]


def dtype_name(dtype: torch.dtype) -> DTypeName:
    """Return a floating dtype by its name in configuration files.

    Raises:
        CheckpointError: for another dtype.
    """
    for name in ("float32", "bfloat16", "float16"):
        if str(dtype) == f"torch.{name}":
            return name
    raise CheckpointError(f"weights are {dtype}; expected float32, bfloat16 or float16")


def _answer(processor: Processor, desc: str) -> str:
    known = processor.tokenizer.get_vocab()
    marks = [token for tokens in STRUCTURE_TOKENS.values() for token in tokens if token is not None and token in known]
    bins = [int_to_token(k) for k in range(0, NUM_BINS, _BIN_STRIDE)]
    return "".join([*marks, desc, *(token for token in bins if token in known), "<|im_end|>"])


@torch.no_grad()
def _logits(model: nn.Module, samples: Sequence[Sample]) -> list[Tensor]:
    device = inner_model(model).device
    was_training = model.training
    model.eval()
    try:
        inputs = [{name: tensor.to(device) for name, tensor in sample.items()} for sample in samples]
        return [model(**one, use_cache=False).logits.float().cpu() for one in inputs]
    finally:
        model.train(was_training)


def _largest_difference(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        raise CheckpointError(
            f"the merged checkpoint gives logits of shape {tuple(b.shape)}, expected {tuple(a.shape)}"
        )
    return float((a - b).abs().max())
