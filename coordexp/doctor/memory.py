"""What a run needs of a device's memory, part by part: while it trains, and while it generates.

Training, all at once at the end of the forward pass:

- weights: of the base, in their dtype, and of what is trained (a copy of the offset tables that PEFT makes too);
- gradients: of what is trained; twice with several workers, since DDP keeps buckets of them. DeepSpeed's ZeRO-2
  divides gradients and moments over the workers;
- AdamW: two moments of what is trained, and once more its size while it steps;
- autocast: bfloat16 copies of the float32 weights, kept until backward (``precision: bfloat16`` only);
- text and vision activations: what autograd keeps, layer by layer, see below;
- head: hidden states of supervised tokens and their mean rows in float32, the 1000 coord logits with
  their gradient, the adapted rows, and three chunks of the table; under full tuning two ``[T, V]`` instead;
- pixels: uint8 patches, scaled in float64, and the float values repeated over time;
- backward: the gradients that flow through one MLP, three times its width.

Evaluation has weights, moments, and

- key-value cache of ``evaluation.batch_size`` x (prompt + ``max_new_tokens``), and one layer's copy as it grows;
- prefill: the widest text layer and vision block of the prompts that are read at once, their keys and values before
  they are in their rows, and their pixels;
- logits: four float32 ``[B, V]`` a step.

On top of either: what the process itself takes (CUDA context, kernels, workspaces; on a CPU Python and its
libraries), and a twentieth for fragmentation.

Activations were read off ``transformers.models.qwen3_vl`` and PEFT's linear layers, and compared with torch's
saved-tensor hooks by a test. In one text layer each token keeps

- norms: both RMSNorms and those of queries and keys keep a float32 copy of their input;
- attention: queries, keys, values (repeated for every head, since a padded batch has a mask) and
  the output; plus the mask as numbers, ``[B, L, L]`` a layer, once for all heads;
- MLP: gate, its activation, and up;
- linears: the input of each trained linear, whose cast to the adapter's dtype is a copy for each of
  them (without a cast q, k, v share one, and gate, up another), and the r numbers between the two
  halves of LoRA; DoRA keeps two outputs of each linear as well.

A vision block keeps the like for each patch: two LayerNorm inputs, the joint qkv, rotated q and k,
the output, the GELU's input, and the inputs of four linears. A merger keeps four times a patch's width.
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
from coordexp.evaluate.generate.generation import prompts_at_once
from coordexp.losses.head import CHUNK_ELEMENTS_CPU, CHUNK_ELEMENTS_GPU
from coordexp.model.checkpoint.stored_model import Dimensions, empty_model
from coordexp.model.loading import AttnImplementation
from coordexp.model.lora import Tuning
from coordexp.train.setup.components import with_adapters

TRAINING, EVALUATION = "training", "evaluation"  # the phases; a merge holds the model once
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
        )
        # ZeRO divides optimizer states and gradients over the workers.
        self._shares = 1 if run.cluster.strategy == "ddp" else run.cluster.num_workers

    def training(self, size: SequenceSize) -> dict[str, int]:
        run, counts, mode, batch = self._run, self._counts, self._mode, self._run.training.per_device_batch_size
        weights, gradients = counts.num_bytes, 2 * counts.trained_bytes // self._shares
        if run.cluster.strategy == "ddp" and run.cluster.num_workers == 1:
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
        width = self._mode.weight_bytes  # full tuning may evaluate under autocast, in less
        length = size.prompt + self._run.evaluation.max_new_tokens
        cached = 2 * self._dimensions.key_width * width
        read_at_once = prompts_at_once(batch)
        # An adapter's input is cast to float32 while its linear runs.
        text_widest = text.intermediate_size * (3 * width + 4) + 4 * text.hidden_size * width
        vision_widest = max(vision.intermediate_size * (2 * width + 4), vision.hidden_size * (3 * width + 4 * 4))
        vision_widest += 2 * vision.hidden_size * width
        widest = max(size.prompt * text_widest, size.patches * vision_widest)
        parts = self._process() | {
            "weights": self._counts.num_bytes,
            "AdamW moments": 2 * self._counts.trained_bytes // self._shares,
            "key-value cache": batch * length * cached * (text.num_hidden_layers + 1),
            "prefill": read_at_once * (widest + size.prompt * cached * text.num_hidden_layers),
            "pixels": self._pixels(read_at_once * size.patches),
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


@dataclass(frozen=True)
class Mode:
    """What decides how much is kept.

    Attributes:
        tuning: ``lora``, ``dora`` or ``full``.
        rank: of the adapters.
        dropout: whether their inputs are dropped out.
        vision: whether the vision tower trains.
        autocast: whether layers compute in bfloat16 whatever the weights are.
        weight_bytes: width of a weight.
        attention: the implementation.
        checkpointing: keep each layer's input only, and compute the rest again.
    """

    tuning: Tuning
    rank: int
    dropout: bool
    vision: bool
    autocast: bool
    weight_bytes: int
    attention: AttnImplementation
    checkpointing: bool

    @property
    def width(self) -> int:
        """Bytes of a number that a layer computes."""
        return 2 if self.autocast else self.weight_bytes

    @property
    def adapter_width(self) -> int:
        """Bytes of a number in an adapter, whose own weights are float32."""
        return self.width if self.autocast or self.tuning == "full" else 4

    @property
    def casts(self) -> bool:
        """Whether each linear's input is copied to another dtype."""
        if self.tuning == "full":
            return self.autocast and self.weight_bytes == 4
        return self.autocast or self.weight_bytes < 4

    def linear_bytes(self, *, inputs: int, shared_inputs: int, outputs: int, count: int) -> int:
        """Return what ``count`` trained linears keep of a token.

        Args:
            inputs: their input widths, added up.
            shared_inputs: the same with each distinct input once.
            outputs: their output widths, added up.
            count: how many linears.
        """
        kept = (inputs if self.casts else shared_inputs) * self.adapter_width
        if self.tuning == "full":
            return kept
        kept += count * self.rank * self.adapter_width
        kept += inputs * (1 + self.adapter_width) if self.dropout else 0
        return kept + (2 * outputs * self.width if self.tuning == "dora" else 0)


def text_layer_bytes(model: Dimensions, mode: Mode, *, batch_size: int, length: int) -> int:
    """Return what one text layer keeps of ``batch_size`` sequences of ``length`` tokens."""
    text = model.text
    hidden, middle = text.hidden_size, text.intermediate_size
    queries, keys = model.query_width, model.key_width
    norms = 4 * (2 * hidden + queries + keys)
    if mode.tuning == "full":  # a trained scale needs what it scales
        norms += mode.weight_bytes * (2 * hidden + queries + keys)
    linears = mode.linear_bytes(
        inputs=5 * hidden + queries + middle,
        shared_inputs=2 * hidden + middle,
        outputs=2 * hidden + queries + 2 * keys + 2 * middle,
        count=7,
    )
    per_token = norms + 4 * queries * mode.width + 3 * middle * mode.width + linears
    pairs = batch_size * length**2
    return batch_size * length * per_token + pairs * _scores_width(mode, text.num_attention_heads, masked=True)


def vision_block_bytes(model: Dimensions, mode: Mode, *, num_images: int, patches: int) -> int:
    """Return what one vision block keeps of ``num_images`` images of ``patches`` patches; 0 where it does not train."""
    if not mode.vision:
        return 0
    vision = model.vision
    hidden, middle = vision.hidden_size, vision.intermediate_size
    inputs = 3 * hidden + middle
    linears = mode.linear_bytes(inputs=inputs, shared_inputs=inputs, outputs=5 * hidden + middle, count=4)
    per_patch = 2 * 4 * hidden + 6 * hidden * mode.width + middle * mode.width + linears
    return num_images * (patches * per_patch + patches**2 * _scores_width(mode, vision.num_heads, masked=False))


def mergers_bytes(model: Dimensions, mode: Mode, *, num_images: int, patches: int) -> int:
    """Return what the mergers keep; 0 where they do not train."""
    if not mode.vision:
        return 0
    vision = model.vision
    hidden = vision.hidden_size
    linears = mode.linear_bytes(inputs=2 * hidden, shared_inputs=2 * hidden, outputs=2 * hidden, count=2)
    num_mergers = 1 + len(vision.deepstack_visual_indexes)
    return num_images * patches * num_mergers * (4 * hidden + hidden * mode.width + linears)


def kept_bytes(model: Dimensions, mode: Mode, *, batch_size: int, length: int, patches: int) -> tuple[int, int]:
    """Return what a whole forward pass keeps: of the text layers, and of the vision tower.

    Under checkpointing each layer keeps its input, and the largest layer is there once while it is
    computed again.
    """
    text, vision = model.text, model.vision
    layer = text_layer_bytes(model, mode, batch_size=batch_size, length=length)
    block = vision_block_bytes(model, mode, num_images=batch_size, patches=patches)
    mergers = mergers_bytes(model, mode, num_images=batch_size, patches=patches)
    ends = batch_size * length * 4 * text.hidden_size  # the last norm's input
    if not mode.checkpointing:
        return text.num_hidden_layers * layer + ends, vision.depth * block + mergers
    stream = mode.weight_bytes
    inputs = text.num_hidden_layers * batch_size * length * text.hidden_size * stream
    patch_inputs = vision.depth * batch_size * patches * vision.hidden_size * stream if mode.vision else 0
    return inputs + ends + max(layer, block), patch_inputs + mergers


def _scores_width(mode: Mode, num_heads: int, *, masked: bool) -> int:
    """Return the bytes kept for each pair of positions."""
    if mode.attention == "eager":
        return num_heads * (4 if mode.width == 4 else 4 + mode.width)  # a softmax in float32, and its cast
    return mode.width if masked and mode.attention == "sdpa" else 0
