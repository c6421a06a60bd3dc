"""What a run needs of a device's memory, part by part: while it trains, and while it generates.

Training, all at once at the end of the forward pass:

- weights: of the base, in their dtype, and of what is trained (a copy of the offset tables that PEFT makes too);
- gradients: of what is trained; twice with several workers, since DDP keeps buckets of them. DeepSpeed's ZeRO-2
  divides gradients and moments over the workers, and ZeRO-3 the weights too, but for the output table;
- AdamW: two moments of what is trained, and once more its size while it steps;
- autocast: bfloat16 copies of the float32 weights, kept until backward (``precision: bfloat16`` only);
- text and vision activations: see :mod:`coordexp.doctor.activations`;
- head: hidden states of supervised tokens and their mean rows in float32, the 1000 coord logits with
  their gradient, the adapted rows, and three chunks of the table; under full tuning two ``[T, V]`` instead;
- pixels: uint8 patches, scaled in float64, and the float values repeated over time;
- backward: the gradients that flow through one MLP, three times its width.

Evaluation has weights, moments, and

- key-value cache of ``evaluation.batch_size`` x (prompt + ``max_new_tokens``), and one layer's copy as it grows;
- prefill: the widest text layer and vision block of the whole batch, and its pixels;
- logits: four float32 ``[B, V]`` a step.

On top of either: what the process itself takes (CUDA context, kernels, workspaces; on a CPU Python and its
libraries), and a twentieth for fragmentation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel, Qwen3VLConfig

from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.offset_adapter import inner_model
from coordexp.doctor.activations import Mode, kept_bytes
from coordexp.losses.head_functions import CHUNK_ELEMENTS_CPU, CHUNK_ELEMENTS_GPU
from coordexp.model.checkpoint.empty_model import Dimensions, empty_model
from coordexp.train.setup.components import with_adapters

TRAINING, EVALUATION = "training", "evaluation"  # the phases

_CONTEXT_BYTES_GPU = 800 * 2**20
_PROCESS_BYTES_CPU = 700 * 2**20
_FRAGMENTATION = 0.05


@dataclass(frozen=True)
class SequenceSize:
    """The longest sequence of a batch, or an ordinary one.

    Attributes:
        prompt: tokens of prompt and image.
        length: tokens of the whole sequence.
        patches: of its image.
    """

    prompt: int
    length: int
    patches: int


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters of a model.

    Attributes:
        num: all of them, the trained ones included; tied tables count once.
        num_bytes: of all.
        num_trained: that the optimizer moves.
        trained_bytes: of those.
        num_float32: in float32, of which autocast keeps bfloat16 copies.
    """

    num: int
    num_bytes: int
    num_trained: int
    trained_bytes: int
    num_float32: int

    @classmethod
    def of(cls, model: nn.Module) -> "ParameterCounts":
        """Count a model's parameters."""
        every = list(model.parameters())
        trained = [parameter for parameter in every if parameter.requires_grad]
        return cls(
            num=sum(parameter.numel() for parameter in every),
            num_bytes=sum(parameter.nbytes for parameter in every),
            num_trained=sum(parameter.numel() for parameter in trained),
            trained_bytes=sum(parameter.nbytes for parameter in trained),
            num_float32=sum(parameter.numel() for parameter in every if parameter.dtype == torch.float32),
        )

    @property
    def frozen_width(self) -> int:
        """Bytes of a number of the frozen base, also where float32 offsets lie beside it."""
        num_frozen = self.num - self.num_trained
        return round((self.num_bytes - self.trained_bytes) / num_frozen if num_frozen else self.num_bytes / self.num)


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory of one device with one run's worker on it.

    Attributes:
        phases: bytes of each part of training and of evaluation; the larger one counts.
    """

    phases: Mapping[str, Mapping[str, int]]

    @property
    def totals(self) -> dict[str, int]:
        """Bytes of each phase."""
        return {name: sum(parts.values()) for name, parts in self.phases.items()}

    @property
    def num_bytes(self) -> int:
        """At the peak."""
        return max(self.totals.values())


def expanded_base(config: Qwen3VLConfig, *, num_tokens: int, dtype: torch.dtype) -> PreTrainedModel:
    """Return the base of a run without data, its tables with rows for ``num_tokens`` ids at least."""
    expanded = Qwen3VLConfig.from_dict(config.to_dict())
    text = Dimensions.of(expanded).text
    text.vocab_size = max(text.vocab_size, num_tokens)
    return empty_model(expanded, dtype=dtype)


def run_model(
    config: Qwen3VLConfig, run: ExperimentConfig, *, dtype: torch.dtype, offset_ids: range
) -> PreTrainedModel | PeftModel:
    """Return the model as a run trains it, without data: vocabulary expanded, offsets and adapters on it."""
    base = expanded_base(config, num_tokens=offset_ids.stop, dtype=dtype)
    with torch.device("meta"):
        return with_adapters(run, base, offset_ids=offset_ids)


def estimate(
    model: nn.Module, run: ExperimentConfig, sizes: Sequence[SequenceSize], *, on_gpu: bool
) -> list[MemoryEstimate]:
    """Estimate the memory of one worker, for each of some sizes that all sequences of a batch may have.

    Args:
        model: of :func:`run_model`.
        run: batch sizes, precision and what trains.
        sizes: of the sequences.
        on_gpu: whether a GPU computes.
    """
    config = inner_model(model).config
    assert isinstance(config, Qwen3VLConfig)
    worker = _Worker(Dimensions.of(config), run, ParameterCounts.of(model), on_gpu)
    return [MemoryEstimate({TRAINING: worker.training(size), EVALUATION: worker.evaluation(size)}) for size in sizes]


class _Worker:
    """Adds up what one worker holds; each method gives bytes by part."""

    def __init__(self, dimensions: Dimensions, run: ExperimentConfig, counts: ParameterCounts, on_gpu: bool) -> None:
        self._text, self._vision, self._dimensions = dimensions.text, dimensions.vision, dimensions
        self._run, self._counts, self._on_gpu = run, counts, on_gpu
        self._mode = Mode(
            tuning=run.training.tuning,
            rank=run.training.lora.rank,
            dropout=run.training.lora.dropout > 0,
            vision=run.training.lora.vision or run.training.tuning == "full",
            autocast=run.training.precision == "bfloat16",
            weight_bytes=counts.frozen_width,
            attention=run.model.attn_implementation,
            checkpointing=run.training.gradient_checkpointing,
            packing=run.data.packing,
        )
        # ZeRO divides optimizer states and gradients over the workers.
        self._shares = 1 if run.cluster.strategy == "ddp" else run.cluster.num_workers

    def training(self, size: SequenceSize) -> dict[str, int]:
        run, counts, mode, batch = self._run, self._counts, self._mode, self._run.training.per_device_batch_size
        weights, gradients = counts.num_bytes, 2 * counts.trained_bytes // self._shares
        if run.cluster.strategy == "zero3":
            table = self._text.vocab_size * self._text.hidden_size * mode.weight_bytes
            weights = counts.num_bytes // run.cluster.num_workers + table
        elif run.cluster.strategy == "ddp" and run.cluster.num_workers == 1:
            gradients = counts.trained_bytes
        text, vision = kept_bytes(self._dimensions, mode, batch_size=batch, length=size.length, patches=size.patches)
        mlp = 3 * self._text.intermediate_size * mode.width
        vision_mlp = 3 * self._vision.intermediate_size * mode.width if mode.vision else 0
        parts = self._process() | {
            "weights": weights,
            "AdamW moments": 2 * counts.trained_bytes // self._shares,
            "gradients": gradients,
            "AdamW step": counts.trained_bytes // self._shares,
            "autocast copies": 2 * counts.num_float32 if mode.autocast else 0,
            "text activations": text,
            "vision activations": vision,
            "head": self._head(batch * max(1, size.length - size.prompt)),
            "pixels": self._pixels(batch * size.patches),
            "backward": batch * max(size.length * mlp, size.patches * vision_mlp),
        }
        return _with_fragmentation(parts)

    def evaluation(self, size: SequenceSize) -> dict[str, int]:
        text, vision, batch = self._text, self._vision, self._run.evaluation.batch_size
        width = self._mode.weight_bytes  # evaluation runs without autocast
        length = size.prompt + self._run.evaluation.max_new_tokens
        cached = 2 * self._dimensions.key_width * width
        # An adapter's input is cast to float32 while its linear runs.
        text_widest = text.intermediate_size * (3 * width + 4) + 4 * text.hidden_size * width
        vision_widest = max(vision.intermediate_size * (2 * width + 4), vision.hidden_size * (3 * width + 4 * 4))
        vision_widest += 2 * vision.hidden_size * width
        parts = self._process() | {
            "weights": self._counts.num_bytes,
            "AdamW moments": 2 * self._counts.trained_bytes // self._shares,
            "key-value cache": batch * length * cached * (text.num_hidden_layers + 1),
            "prefill": batch * max(size.prompt * text_widest, size.patches * vision_widest),
            "pixels": self._pixels(batch * size.patches),
            "logits": 4 * 4 * batch * text.vocab_size,
        }
        return _with_fragmentation(parts)

    def _process(self) -> dict[str, int]:
        return {"CUDA context": _CONTEXT_BYTES_GPU} if self._on_gpu else {"Python and libraries": _PROCESS_BYTES_CPU}

    def _head(self, num_tokens: int) -> int:
        width, vocab_size = self._text.hidden_size, self._text.vocab_size
        hidden = 2 * 4 * num_tokens * width
        if self._mode.tuning == "full":
            return hidden + 2 * 4 * num_tokens * vocab_size
        chunk = min(CHUNK_ELEMENTS_GPU if self._on_gpu else CHUNK_ELEMENTS_CPU, max(num_tokens, width) * vocab_size)
        return hidden + 2 * 4 * num_tokens * NUM_BINS + 2 * 4 * NUM_BINS * width + 3 * 4 * chunk

    def _pixels(self, num_patches: int) -> int:
        values = self._vision.in_channels * self._dimensions.patch_size**2
        return num_patches * values * (1 + 8 + self._dimensions.temporal_patch_size * (4 + self._mode.weight_bytes))


def _with_fragmentation(parts: dict[str, int]) -> dict[str, int]:
    return parts | {"fragmentation": round(_FRAGMENTATION * sum(parts.values()))}
