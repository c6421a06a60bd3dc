"""Model FLOP utilisation: the floating-point operations that a training step needs, over those the device could do.

Counted as in Chowdhery et al. 2022 (PaLM, appendix B): multiplications and additions of the matrix products that the
model itself asks for. Recomputed activations, padding and the optimizer do not count. A frozen weight takes no product
for its own gradient, so a step with adapters asks for about 4 N operations a token, not 6 N.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from coordexp.coord_tokens.offset_adapter import inner_model
from coordexp.data.batch import Batch
from coordexp.model.checkpoint.stored_model import Dimensions
from coordexp.model.families import family_of

# Dense peak in operations a second, from the vendor's data sheets: (bfloat16, float32 without TF32).
_PEAKS = {
    "GB200": (2.5e15, 80e12),
    "B200": (2.25e15, 75e12),
    "GH200": (989e12, 67e12),
    "H200 NVL": (835e12, 60e12),
    "H200": (989e12, 67e12),
    "H100 NVL": (835e12, 60e12),
    "H100 PCIe": (756e12, 51e12),
    "H100": (989e12, 67e12),
    "A100": (312e12, 19.5e12),
    "L40S": (362e12, 91.6e12),
    "A10G": (70e12, 35e12),
    "A10": (125e12, 31.2e12),
    "RTX 4090": (165e12, 82.6e12),
}
_SMALLER = re.compile(r"MIG|Laptop|4090 D\b")  # a slice of the device, or a smaller device under its name
_MEASURED_SIDES = {"cpu": 512, "cuda": 4096}  # a small product would leave a GPU idle most of the time
_MEASURED_PRODUCTS = 8


@dataclass(frozen=True)
class FlopCounter:
    """Operations of a training step, forward and backward, for each thing that it is made of."""

    per_token: float  # a token in the language model, without attention
    per_token_squared: float  # a token's attention to a token of its sequence; half, since half of all pairs are causal
    per_patch: float  # a patch in the vision tower, with its share of the mergers
    per_patch_squared: float  # a patch's attention to a patch of its image
    per_supervised_token: float  # the head, which is applied at supervised positions only
    peak: float = 1.0  # operations a second that all devices of the run together could do

    def step_flops(self, sums: Mapping[str, float]) -> float:
        """Return the operations of steps, from sums of :func:`flop_units` and ``num_tokens``, the supervised tokens."""
        return (
            self.per_token * sums["num_sequence_tokens"]
            + self.per_token_squared * sums["num_sequence_tokens_squared"]
            + self.per_patch * sums["num_patches"]
            + self.per_patch_squared * sums["num_patches_squared"]
            + self.per_supervised_token * sums["num_tokens"]
        )

    def utilisation(self, sums: Mapping[str, float], *, seconds: float) -> float:
        """Return the operations of steps that took these seconds, over what the devices could have done in them."""
        return self.step_flops(sums) / max(seconds * self.peak, 1e-9)


def flop_units(batch: Batch) -> dict[str, Tensor]:
    """Return what the operations of a microbatch depend on, as scalars on its device: the host does not wait."""
    lengths = batch.sequence_lengths.to(torch.float64)
    patches = batch.image_grid_thw.to(torch.float64).prod(-1)
    return {
        "num_sequence_tokens": lengths.sum(),
        "num_sequence_tokens_squared": lengths.square().sum(),
        "num_patches": patches.sum(),
        "num_patches_squared": patches.square().sum(),
    }


def count_flops(model: nn.Module, config: PreTrainedConfig) -> FlopCounter:
    """Count the operations of a step of this model, with what trains in it now.

    For each number of a matrix, a token takes 2 operations (a multiplication and an addition) forward, 2 backward for
    the gradient of the activations, and 2 more for the matrix's own gradient if it trains.

    ``torch.utils.flop_counter`` is not used: it also counts what activation checkpointing computes a second time, it
    takes causal attention for the whole square, and it does not see flash-attn.
    """
    sizes = Dimensions.of(config)
    matrices = [(f".{name}", p) for name, p in model.named_parameters() if p.dim() > 1]
    trains_vision = any(".visual." in name and p.requires_grad for name, p in matrices)
    per_token = 0.0
    per_patch = 0.0
    for name, p in matrices:
        own_gradient = 2 if p.requires_grad else 0
        if ".language_model.layers." in name:
            per_token += p.numel() * (4 + own_gradient)
        elif ".patch_embed." in name:
            per_patch += p.numel() * (2 + own_gradient)  # no gradient goes to pixels
        elif ".visual." in name and ".pos_embed." not in name:
            activations = 4 if trains_vision else 2  # in a frozen tower nothing goes backward
            num_merged = sizes.vision.spatial_merge_size**2 if "merger" in name else 1
            per_patch += p.numel() * (activations + own_gradient) / num_merged

    head = inner_model(model).get_output_embeddings()
    trains_head = head is not None and any(p.requires_grad for p in head.parameters())
    # Attention has two products, queries by keys and weights by values: 4 operations forward for each number of a
    # query. Both operands of each have a gradient, so backward costs twice as much again.
    text_attention = 3 * 4 * sizes.text.num_hidden_layers * sizes.query_width
    vision_attention = 4 * sizes.vision.depth * sizes.vision.hidden_size
    return FlopCounter(
        per_token=per_token,
        per_token_squared=0.5 * text_attention,
        per_patch=per_patch,
        per_patch_squared=(3 if trains_vision else 1) * vision_attention,
        per_supervised_token=(6 if trains_head else 4) * sizes.text.hidden_size * sizes.text.vocab_size,
    )


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations a second that a device could do at best.

    A GPU of the table has the figure that its vendor published. On another device, also on a CPU, one large matrix
    product is timed here and now.
    """
    device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    if not _SMALLER.search(device_name):
        for gpu, (half, single) in _PEAKS.items():
            if re.search(rf"\b{gpu}\b", device_name):  # an A1000 is not an A100
                return half if dtype in (torch.bfloat16, torch.float16) else single
    return _timed_peak(device, dtype, torch.get_num_threads())


def flop_counter(model: nn.Module, *, half_precision: bool, num_devices: int) -> FlopCounter | None:
    """Return the counter that measures a run's utilisation; None for a model family whose operations we do not count.

    Args:
        model: with everything that trains, before its weights are shared out over ranks. It need not be on its GPU yet.
        half_precision: whether products are in bfloat16 under autocast.
        num_devices: devices of the run.
    """
    weight = next(model.parameters())
    config = inner_model(model).config
    if not family_of(config.model_type, where="the model").is_sized:
        return None
    # The trainer moves the model later, to the GPU if there is one.
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else weight.device
    peak = peak_flops(device, torch.bfloat16 if half_precision else weight.dtype)
    return replace(count_flops(model, config), peak=peak * num_devices)


@functools.cache
def _timed_peak(device: torch.device, dtype: torch.dtype, num_threads: int) -> float:
    """Time matrix products. Cached, so that all runs of a process are measured against the same peak."""
    from torch.utils.benchmark import Timer

    side = _MEASURED_SIDES.get(device.type, _MEASURED_SIDES["cpu"])
    matrix = torch.ones(side, side, device=device, dtype=dtype)
    timer = Timer("torch.mm(matrix, matrix)", globals={"torch": torch, "matrix": matrix}, num_threads=num_threads)
    return 2 * side**3 / timer.timeit(_MEASURED_PRODUCTS).mean
