"""What a run needs of a device's memory while it trains, while it generates, and while it merges.

Weights, gradients, AdamW's states and the cache of keys and values are counted; what autograd keeps is estimated:

    bytes = width * batch * (layers * length * (9 hidden + 7 queries + 2 keys + 4 mlp) + layers * length**2
                             + blocks * patches * (13 hidden + 2 mlp))

``width`` is that of the numbers computed with (2 in bfloat16). A text layer keeps float32 copies of what its norms
scale, queries, keys and values repeated for every head, the gated MLP, and the inputs of seven linears; ``length**2``
is its mask, or with eager attention the scores of every head. A vision block (only where the tower trains) keeps the
like, and the mergers about as much as one more. DoRA and dropout keep half as many numbers again. Under gradient
checkpointing each layer keeps its input alone, and the largest layer is there once.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from coordexp.config.schema import RunConfig
from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.offset_adapter import inner_model
from coordexp.evaluate.generate.generation import prompts_at_once
from coordexp.losses.projections import CHUNK_ELEMENTS_CPU, CHUNK_ELEMENTS_GPU
from coordexp.model.checkpoint.stored_model import Dimensions, empty_model
from coordexp.train.setup.components import with_adapters

TRAINING, EVALUATION, MERGE = "training", "evaluation", "merge"  # the phases
_PROCESS_BYTES_GPU, _PROCESS_BYTES_CPU = 800 * 2**20, 700 * 2**20  # CUDA's context; Python and its libraries
_FRAGMENTATION = 0.05
_PIXEL_BYTES = 24  # of a value: uint8, scaled in float64, then the floats of two frames


@dataclass(frozen=True)
class SequenceSize:
    """The longest sequence of a batch, or an ordinary one."""

    prompt: int  # tokens of prompt and image
    length: int  # tokens of the whole sequence
    patches: int  # of its image


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of each part of each phase, on one device with one run's worker on it; the largest phase counts."""

    phases: Mapping[str, Mapping[str, int]]

    @property
    def totals(self) -> dict[str, int]:
        return {name: sum(parts.values()) for name, parts in self.phases.items()}

    @property
    def peak(self) -> int:
        return max(self.totals.values())


def num_bytes(model: nn.Module, *, trained: bool = False) -> int:
    """Return the size of a model's parameters, or of those that train; tied tables count once."""
    return sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad or not trained)


def expanded_base(config: PreTrainedConfig, *, num_tokens: int, dtype: torch.dtype) -> PreTrainedModel:
    """Return the base of a run without data, its tables with rows for ``num_tokens`` ids at least."""
    expanded = copy.deepcopy(config)
    expanded.get_text_config().vocab_size = max(Dimensions.of(config).text.vocab_size, num_tokens)
    return empty_model(expanded, dtype=dtype)


def run_model(
    config: PreTrainedConfig, run: RunConfig, *, dtype: torch.dtype, offset_ids: range
) -> PreTrainedModel | PeftModel:
    """Return the model as a run trains it, without data: vocabulary expanded, offsets and adapters on it."""
    base = expanded_base(config, num_tokens=offset_ids.stop, dtype=dtype)
    with torch.device("meta"):
        return with_adapters(run, base, offset_ids=offset_ids)


def estimate(model: nn.Module, run: RunConfig, size: SequenceSize, *, on_gpu: bool) -> MemoryEstimate:
    """Estimate the memory of one worker with a model of :func:`run_model`, all sequences being of one ``size``."""
    dimensions = Dimensions.of(inner_model(model).config)
    weights, trained = num_bytes(model), num_bytes(model, trained=True)
    text, vision = dimensions.text, dimensions.vision
    narrowest = min(parameter.itemsize for parameter in model.parameters())  # of the base; adapters are float32
    autocast = run.training.precision == "bfloat16"
    workers = run.cluster.num_workers
    shares = 1 if run.cluster.strategy == "ddp" else workers
    pixels = _PIXEL_BYTES * size.patches * vision.in_channels * vision.patch_size**2

    batch, num_targets = run.training.per_device_batch_size, max(1, size.length - size.prompt)
    float32 = sum(parameter.numel() for parameter in model.parameters() if parameter.dtype == torch.float32)
    training = {
        "weights": weights,
        "autocast copies": 2 * float32 if autocast else 0,
        # DDP keeps buckets of them beside; ZeRO divides buckets and states over the workers.
        "gradients": (2 if workers > 1 else 1) * trained // shares,
        "AdamW": 3 * trained // shares,  # two moments, and one more while it steps
        "activations": _kept_bytes(dimensions, run, 2 if autocast else narrowest, size),
        "logits": _head_bytes(dimensions, run, batch * num_targets, on_gpu=on_gpu),
        "pixels": batch * pixels,
    }
    batch, length = run.evaluation.batch_size, size.prompt + run.evaluation.max_new_tokens
    cached = 2 * dimensions.key_width * narrowest
    widest = 5 * narrowest * max(size.prompt * text.intermediate_size, size.patches * vision.intermediate_size)
    prefill = widest + size.prompt * cached * text.num_hidden_layers + pixels
    evaluation = {
        "weights": weights,
        "AdamW": 2 * trained // shares,
        "key-value cache": batch * length * cached * (text.num_hidden_layers + 1),
        "prefill": prompts_at_once(batch) * prefill,
        "logits": 4 * 4 * batch * text.vocab_size,
    }
    # The model is there once, and its largest tensor, a table, in float32 beside what is added to it.
    merge = {"weights": weights, "table": 2 * 4 * text.vocab_size * text.hidden_size}
    process = {"process": _PROCESS_BYTES_GPU if on_gpu else _PROCESS_BYTES_CPU}
    phases = {TRAINING: process | training, EVALUATION: process | evaluation, MERGE: process | merge}
    for parts in phases.values():
        parts["fragmentation"] = round(_FRAGMENTATION * sum(parts.values()))
    return MemoryEstimate(phases)


def _kept_bytes(dimensions: Dimensions, run: RunConfig, width: int, size: SequenceSize) -> int:
    """Return what autograd keeps of a forward pass, and the gradients that flow through one MLP."""
    text, vision, lora = dimensions.text, dimensions.vision, run.training.lora
    is_full = run.training.tuning == "full"
    more = 1.5 if run.training.tuning == "dora" or (lora.dropout > 0 and not is_full) else 1.0
    is_eager = run.model.attn_implementation == "eager"
    layer = size.length * more * (
        9 * text.hidden_size + 7 * dimensions.query_width + 2 * dimensions.key_width + 4 * text.intermediate_size
    ) + size.length**2 * (2 * text.num_attention_heads if is_eager else 1)
    block = size.patches * more * (13 * vision.hidden_size + 2 * vision.intermediate_size)
    block += size.patches**2 * (2 * vision.num_heads if is_eager else 0)
    num_layers, num_blocks = text.num_hidden_layers, vision.depth + 1 if is_full or lora.vision else 0
    if run.training.gradient_checkpointing:
        inputs = num_layers * size.length * text.hidden_size + num_blocks * size.patches * vision.hidden_size
        kept = inputs + max(layer, block if num_blocks else 0)
    else:
        kept = num_layers * layer + num_blocks * block
    backward = 3 * size.length * text.intermediate_size
    return round(width * run.training.per_device_batch_size * (kept + backward))


def _head_bytes(dimensions: Dimensions, run: RunConfig, num_tokens: int, *, on_gpu: bool) -> int:
    """Return hidden states, logits and their gradients at supervised positions, in float32."""
    hidden, vocab_size = dimensions.text.hidden_size, dimensions.text.vocab_size
    if run.training.tuning == "full":
        return 2 * 4 * num_tokens * (hidden + vocab_size)
    # The head goes over the table in chunks, three of which are there at once.
    chunk = min(CHUNK_ELEMENTS_GPU if on_gpu else CHUNK_ELEMENTS_CPU, max(num_tokens, hidden) * vocab_size)
    return 2 * 4 * num_tokens * (hidden + NUM_BINS) + 3 * 4 * chunk
