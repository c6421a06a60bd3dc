"""How much memory of a device a run needs while it trains, while it generates, and while it merges.

Weights, gradients, AdamW's states and the cache of keys and values are counted. What autograd keeps is estimated:

    bytes = width * batch * (layers * length * (9 hidden + 7 queries + 2 keys + 4 mlp) + layers * length**2
                             + blocks * patches * (13 hidden + 2 mlp))

``width`` is the number of bytes of a number in the forward pass (2 in bfloat16). A text layer keeps float32 copies of
what its norms scale, queries, keys and values repeated for every head, the gated MLP, and the inputs of seven linears.
``length**2`` is its mask, or with eager attention the scores of every head. A vision block keeps the same kinds of
tensors, and the mergers about as much as one block; both count only if the tower trains. DoRA and dropout keep half as
many numbers again. Under gradient checkpointing each layer keeps its input alone, and the largest layer is kept once.
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

# The phases.
TRAINING = "training"
EVALUATION = "evaluation"
MERGE = "merge"
_PROCESS_BYTES_GPU = 800 * 2**20  # CUDA's context
_PROCESS_BYTES_CPU = 700 * 2**20  # Python and its libraries
_FRAGMENTATION = 0.05
_PIXEL_BYTES = 24  # of one value: uint8, scaled in float64, then the floats of two frames
_FLOAT32_BYTES = 4


@dataclass(frozen=True)
class SequenceSize:
    """The size of a sequence.

    Attributes:
        prompt: tokens of prompt and image.
        length: tokens of the whole sequence.
        patches: patches of its image.
    """

    prompt: int
    length: int
    patches: int


@dataclass(frozen=True)
class MemoryEstimate:
    """What one worker of one run needs of its device.

    Attributes:
        phases: for each phase, the bytes of each purpose, such as ``weights``.
    """

    phases: Mapping[str, Mapping[str, int]]

    @property
    def totals(self) -> dict[str, int]:
        """Bytes of each phase."""
        return {phase: sum(sizes.values()) for phase, sizes in self.phases.items()}

    @property
    def peak(self) -> int:
        """Bytes of the largest phase. The phases follow each other, so the others need no more."""
        return max(self.totals.values())


def num_bytes(model: nn.Module, *, trained: bool = False) -> int:
    """Return the bytes of a model's parameters, or of those that train; tied tables count once."""
    return sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad or not trained)


def expanded_base(config: PreTrainedConfig, *, num_tokens: int, dtype: torch.dtype) -> PreTrainedModel:
    """Return the base model of a run without weights; its tables have at least ``num_tokens`` rows."""
    expanded = copy.deepcopy(config)
    expanded.get_text_config().vocab_size = max(Dimensions.of(config).text.vocab_size, num_tokens)
    return empty_model(expanded, dtype=dtype)


def run_model(
    config: PreTrainedConfig, run: RunConfig, *, dtype: torch.dtype, offset_ids: range
) -> PreTrainedModel | PeftModel:
    """Return the model as a run trains it, without weights: vocabulary expanded, offsets and adapters installed."""
    base = expanded_base(config, num_tokens=offset_ids.stop, dtype=dtype)
    with torch.device("meta"):
        return with_adapters(run, base, offset_ids=offset_ids)


def estimate(model: nn.Module, run: RunConfig, size: SequenceSize, *, on_gpu: bool) -> MemoryEstimate:
    """Estimate the memory that one worker needs.

    Args:
        model: of :func:`run_model`.
        run: its batch sizes, precision, strategy and limits.
        size: the size of every sequence of a batch.
        on_gpu: whether the device is a GPU.
    """
    text = Dimensions.of(inner_model(model).config).text
    process_bytes = _PROCESS_BYTES_GPU if on_gpu else _PROCESS_BYTES_CPU
    phases = {
        TRAINING: {"process": process_bytes, **_training_bytes(model, run, size, on_gpu=on_gpu)},
        EVALUATION: {"process": process_bytes, **_evaluation_bytes(model, run, size)},
        MERGE: {
            "process": process_bytes,
            "weights": num_bytes(model),
            # The largest tensor is a table of tokens. It is there in float32 beside what is added to it.
            "table": 2 * _FLOAT32_BYTES * text.vocab_size * text.hidden_size,
        },
    }
    for sizes in phases.values():
        sizes["fragmentation"] = round(_FRAGMENTATION * sum(sizes.values()))
    return MemoryEstimate(phases)


def _training_bytes(model: nn.Module, run: RunConfig, size: SequenceSize, *, on_gpu: bool) -> dict[str, int]:
    """Return the bytes of each purpose while the model trains."""
    dimensions = Dimensions.of(inner_model(model).config)
    batch_size = run.training.per_device_batch_size
    num_targets = batch_size * max(1, size.length - size.prompt)
    trained_bytes = num_bytes(model, trained=True)
    num_float32 = sum(parameter.numel() for parameter in model.parameters() if parameter.dtype == torch.float32)
    is_autocast = run.training.precision == "bfloat16"
    number_bytes = 2 if is_autocast else _base_itemsize(model)
    # DDP keeps buckets of gradients beside the gradients themselves. ZeRO divides both over the workers.
    gradient_copies = 2 if run.cluster.num_workers > 1 else 1
    num_shares = _num_shares(run)
    return {
        "weights": num_bytes(model),
        "autocast copies": 2 * num_float32 if is_autocast else 0,
        "gradients": gradient_copies * trained_bytes // num_shares,
        "AdamW": 3 * trained_bytes // num_shares,  # two moments, and one more tensor while it steps
        "activations": _activation_bytes(dimensions, run, number_bytes, size),
        "logits": _head_bytes(dimensions, run, num_targets, on_gpu=on_gpu),
        "pixels": batch_size * _pixel_bytes(dimensions, size),
    }


def _evaluation_bytes(model: nn.Module, run: RunConfig, size: SequenceSize) -> dict[str, int]:
    """Return the bytes of each purpose while the model generates answers, between two steps of training."""
    dimensions = Dimensions.of(inner_model(model).config)
    text = dimensions.text
    vision = dimensions.vision
    itemsize = _base_itemsize(model)
    batch_size = run.evaluation.batch_size
    length = size.prompt + run.evaluation.max_new_tokens

    cache_bytes_per_token = 2 * dimensions.key_width * itemsize  # a key and a value, of one layer
    widest_layer = max(size.prompt * text.intermediate_size, size.patches * vision.intermediate_size)
    prefill_bytes = (
        5 * itemsize * widest_layer
        + size.prompt * cache_bytes_per_token * text.num_hidden_layers
        + _pixel_bytes(dimensions, size)
    )
    return {
        "weights": num_bytes(model),
        "AdamW": 2 * num_bytes(model, trained=True) // _num_shares(run),  # the two moments wait for the next step
        "key-value cache": batch_size * length * cache_bytes_per_token * (text.num_hidden_layers + 1),
        "prefill": prompts_at_once(batch_size) * prefill_bytes,
        "logits": 4 * _FLOAT32_BYTES * batch_size * text.vocab_size,
    }


def _base_itemsize(model: nn.Module) -> int:
    """Return the bytes of a number of the base model. Adapters and offsets are float32, so never narrower."""
    return min(parameter.itemsize for parameter in model.parameters())


def _num_shares(run: RunConfig) -> int:
    """Return over how many workers gradients and optimizer states are divided."""
    return 1 if run.cluster.strategy == "ddp" else run.cluster.num_workers


def _pixel_bytes(dimensions: Dimensions, size: SequenceSize) -> int:
    """Return the bytes of one image."""
    vision = dimensions.vision
    return _PIXEL_BYTES * size.patches * vision.in_channels * vision.patch_size**2


def _activation_bytes(dimensions: Dimensions, run: RunConfig, number_bytes: int, size: SequenceSize) -> int:
    """Return what autograd keeps of a forward pass, and the gradients that flow through one MLP.

    The formula is that of the module's docstring; ``number_bytes`` is its ``width``.
    """
    text = dimensions.text
    vision = dimensions.vision
    lora = run.training.lora
    is_full = run.training.tuning == "full"
    is_eager = run.model.attn_implementation == "eager"
    has_copies = run.training.tuning == "dora" or (lora.dropout > 0 and not is_full)
    copies = 1.5 if has_copies else 1.0

    numbers_per_token = (
        9 * text.hidden_size + 7 * dimensions.query_width + 2 * dimensions.key_width + 4 * text.intermediate_size
    )
    scores_per_pair = 2 * text.num_attention_heads if is_eager else 1
    layer = size.length * copies * numbers_per_token + size.length**2 * scores_per_pair

    numbers_per_patch = 13 * vision.hidden_size + 2 * vision.intermediate_size
    scores_per_patch_pair = 2 * vision.num_heads if is_eager else 0
    block = size.patches * copies * numbers_per_patch + size.patches**2 * scores_per_patch_pair

    num_layers = text.num_hidden_layers
    tower_trains = is_full or lora.vision
    num_blocks = vision.depth + 1 if tower_trains else 0
    if run.training.gradient_checkpointing:
        inputs = num_layers * size.length * text.hidden_size + num_blocks * size.patches * vision.hidden_size
        kept_numbers = inputs + max(layer, block if tower_trains else 0)
    else:
        kept_numbers = num_layers * layer + num_blocks * block
    gradient_numbers = 3 * size.length * text.intermediate_size
    return round(number_bytes * run.training.per_device_batch_size * (kept_numbers + gradient_numbers))


def _head_bytes(dimensions: Dimensions, run: RunConfig, num_tokens: int, *, on_gpu: bool) -> int:
    """Return the bytes of hidden states and logits, and of their gradients, at supervised positions in float32."""
    hidden_size = dimensions.text.hidden_size
    vocab_size = dimensions.text.vocab_size
    if run.training.tuning == "full":
        return 2 * _FLOAT32_BYTES * num_tokens * (hidden_size + vocab_size)
    # A frozen head is multiplied in chunks of the table, of which three tensors are there at once. Only the logits of
    # coordinates are kept.
    limit = CHUNK_ELEMENTS_GPU if on_gpu else CHUNK_ELEMENTS_CPU
    num_elements = min(limit, max(num_tokens, hidden_size) * vocab_size)
    return 2 * _FLOAT32_BYTES * num_tokens * (hidden_size + NUM_BINS) + 3 * _FLOAT32_BYTES * num_elements
