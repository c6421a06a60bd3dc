"""Does a checkpoint on disk say what a model said? Compare logits on real input."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from coordexp.coord_tokens.codec import NUM_BINS, int_to_token
from coordexp.coord_tokens.offset_adapter import DTypeName, inner_model
from coordexp.coord_tokens.vocab import STRUCTURE_TOKENS
from coordexp.data.batches.prompt import DEFAULT_PROMPT
from coordexp.data.sources.shapes import CATEGORIES, draw_scene
from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.checkpoint_io import AdapterInfo
from coordexp.model.checkpoint.skeleton import Skeleton, attach_adapter
from coordexp.model.merge.streaming import stream
from coordexp.model.processor import Message, Processor
from coordexp.model.progress import Progress, silent

Sample = Mapping[str, Tensor]

_BIN_STRIDE = 61  # 17 bins over the whole range, shared with no power of two
# Of the largest logit. Rounding of the stored weights, then of every activation: bfloat16 keeps 8 bits, float16 11.
_STORED_TOLERANCE = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}
_COMPUTE_TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Agreement:
    """How well two models agree.

    Attributes:
        max_abs_diff: largest difference of a logit; NaN if one is no number.
        max_abs_logit: largest logit of the reference.
        relative_tolerance: what the difference may be of that.
        tie_word_embeddings: whether the checkpoint shares embedding and head.
    """

    max_abs_diff: float
    max_abs_logit: float
    relative_tolerance: float
    tie_word_embeddings: bool

    @property
    def tolerance(self) -> float:
        """What ``max_abs_diff`` has to stay below."""
        return self.relative_tolerance * self.max_abs_logit

    @property
    def holds(self) -> bool:
        """Whether the difference is a number within the tolerance; NaN never is."""
        return math.isfinite(self.max_abs_diff) and self.max_abs_diff <= self.tolerance


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
        """Run a loaded model on ``samples``; its training mode is restored.

        Raises:
            CheckpointError: if a logit is not finite.
        """
        inner = inner_model(model)
        return cls(samples, _finite(_logits(model, samples, inner.device)), inner.dtype, inner.device)

    @classmethod
    def of_adapter(
        cls,
        base: Path,
        info: AdapterInfo,
        processor: Processor,
        samples: Sequence[Sample],
        *,
        progress: Progress = silent,
    ) -> "Reference":
        """Run a saved adapter on its base in float32, with the base's weights streamed from disk.

        Args:
            base: directory of the base, with all rows that the adapter adds to.
            info: the adapter.
            processor: of the base.
            samples: model inputs.
            progress: told of every block.

        Raises:
            CheckpointError: if the adapter does not fit the base, or a logit is not finite.
            TokenizerError: if it is for another vocabulary.
        """
        skeleton = Skeleton.of(base)
        model = attach_adapter(skeleton, info, processor.tokenizer)
        device = torch.device("cpu")
        logits = _streamed_logits(skeleton, model, samples, device, progress=progress, stage="logits of the adapter")
        return cls(samples, _finite(logits), skeleton.dtype, device)

    def against(
        self, checkpoint: Path, *, stored: str, title: str = "the merged checkpoint", progress: Progress = silent
    ) -> Agreement:
        """Run a checkpoint as plain transformers would load it, streamed from disk, and compare.

        Args:
            checkpoint: a directory.
            stored: dtype of its weights, by name.
            title: what to call it in an error.
            progress: told of every block.

        Raises:
            CheckpointError: if it lacks weights or holds others than the model has.
        """
        skeleton = Skeleton.of(checkpoint, dtype=self.dtype, title=title)
        if skeleton.unused:
            raise CheckpointError(f"{title}: {len(skeleton.unused)} weights are unexpected, e.g. {skeleton.unused[0]}")
        logits = _streamed_logits(
            skeleton, skeleton.model, self.samples, self.device, progress=progress, stage=f"logits of {title}"
        )
        return self.compare(logits, stored=stored, tied=skeleton.tied)

    def compare(self, logits: Sequence[Tensor], *, stored: str, tied: bool) -> Agreement:
        """Hold another model's logits of the same samples against these."""
        differences = [_largest_difference(a, b) for a, b in zip(self.logits, logits, strict=True)]
        return Agreement(
            max_abs_diff=float(torch.stack(differences).max()),  # of which NaN is the largest
            max_abs_logit=max(float(one.abs().max()) for one in self.logits),
            relative_tolerance=max(_STORED_TOLERANCE[stored], _COMPUTE_TOLERANCE[dtype_name(self.dtype)]),
            tie_word_embeddings=tied,
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


def _streamed_logits(
    skeleton: Skeleton,
    model: nn.Module,
    samples: Sequence[Sample],
    device: torch.device,
    *,
    progress: Progress,
    stage: str,
) -> list[Tensor]:
    """Run ``model``, the skeleton's own or one around it; the progress of all samples is one stage."""
    num_done = 0

    def on_block() -> None:
        nonlocal num_done
        num_done += 1
        progress(stage, num_done, total)

    total = stream(skeleton, device=device, on_block=on_block) * len(samples)
    logits = _logits(model, samples, device)
    progress(stage, total, total)  # a sample without a picture leaves blocks out
    return logits


@torch.no_grad()
def _logits(model: nn.Module, samples: Sequence[Sample], device: torch.device) -> list[Tensor]:
    was_training = model.training
    model.eval()
    try:
        inputs = [{name: tensor.to(device) for name, tensor in sample.items()} for sample in samples]
        return [model(**one, use_cache=False).logits.float().cpu() for one in inputs]
    finally:
        model.train(was_training)


def _finite(logits: list[Tensor]) -> list[Tensor]:
    if not all(torch.isfinite(one).all() for one in logits):
        raise CheckpointError(
            "the model itself gives logits that are no numbers, before anything is merged; train it again, or take an "
            "earlier checkpoint"
        )
    return logits


def _largest_difference(a: Tensor, b: Tensor) -> Tensor:
    if a.shape != b.shape:
        raise CheckpointError(
            f"the merged checkpoint gives logits of shape {tuple(b.shape)}, expected {tuple(a.shape)}"
        )
    return (a - b).abs().max()
