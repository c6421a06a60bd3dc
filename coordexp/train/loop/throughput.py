"""Floating-point operations that a training step needs, and how many the device could do: model FLOP utilisation.

Counted as in Chowdhery et al. 2022 (PaLM, appendix B): multiplications and additions of the matrix products that the
model itself asks for; recomputed activations, padding and the optimizer are not the model's. A frozen weight takes no
product for its own gradient, so a step with adapters asks for about 4 N operations a token, not 6 N.
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
_SMALLER = re.compile(r"MIG|Laptop|4090 D\b")  # a part of the device, or another one under its name
_MEASURED_SIDES = {"cpu": 512, "cuda": 4096}  # a GPU is idle most of the time in a small product
_MEASURED_PRODUCTS = 8


@dataclass(frozen=True)
class FlopCounter:
    """Operations of a training step, by what it is made of."""

    per_token: float  # forward and backward of one token in the language model, attention left out
    per_token_squared: float  # of one token's attention to one token of its sequence, causal: half of all pairs
    per_patch: float  # forward and backward of one patch in the vision tower, its share of the mergers included
    per_patch_squared: float  # of one patch's attention to one patch of its image
    per_supervised_token: float  # of the head, which is applied at supervised positions only
    peak: float = 1.0  # operations a second that all devices of the run together could do

    def step_flops(self, sums: Mapping[str, float]) -> float:
        """Return the operations of the sums of :func:`flop_units`, and of ``num_tokens``, the supervised tokens."""
        return (
            self.per_token * sums["num_sequence_tokens"]
            + self.per_token_squared * sums["num_sequence_tokens_squared"]
            + self.per_patch * sums["num_patches"]
            + self.per_patch_squared * sums["num_patches_squared"]
            + self.per_supervised_token * sums["num_tokens"]
        )

    def utilisation(self, sums: Mapping[str, float], *, seconds: float) -> float:
        """Return what the model asked for in steps that took so long, over what the devices could have done."""
        return self.step_flops(sums) / max(seconds * self.peak, 1e-9)


def flop_units(batch: Batch) -> dict[str, Tensor]:
    """Return what the operations of a microbatch depend on, as tensors on its device: nothing waits."""
    lengths = batch.sequence_lengths.to(torch.float64)
    patches = batch.image_grid_thw.to(torch.float64).prod(-1)
    return {
        "num_sequence_tokens": lengths.sum(),
        "num_sequence_tokens_squared": lengths.square().sum(),
        "num_patches": patches.sum(),
        "num_patches_squared": patches.square().sum(),
    }


def count_flops(model: nn.Module, config: PreTrainedConfig) -> FlopCounter:
    """Return what a step of this model asks for, with what trains in it now.

    A matrix takes a multiplication and an addition a number and token: forward, backward for the activations, and once
    more for its own gradient where it trains. Not counted by ``torch.utils.flop_counter``, which also counts what
    checkpointing computes a second time, takes causal attention for the whole square, and does not see flash-attn.
    """
    sizes = Dimensions.of(config)
    matrices = [(f".{name}", p) for name, p in model.named_parameters() if p.dim() > 1]
    trains_vision = any(".visual." in name and p.requires_grad for name, p in matrices)
    per_token = per_patch = 0.0
    for name, p in matrices:
        own = 2 * p.requires_grad
        if ".language_model.layers." in name:
            per_token += p.numel() * (4 + own)
        elif ".patch_embed." in name:
            per_patch += p.numel() * (2 + own)  # no gradient goes to pixels
        elif ".visual." in name and ".pos_embed." not in name:
            merged = sizes.vision.spatial_merge_size**2 if "merger" in name else 1
            per_patch += p.numel() * (2 + 2 * trains_vision + own) / merged
    head = inner_model(model).get_output_embeddings()
    trains_head = head is not None and any(p.requires_grad for p in head.parameters())
    # Queries and keys, then weights and values; both operands have a gradient: forward once, backward twice.
    attended = 4 * sizes.text.num_hidden_layers * sizes.query_width
    return FlopCounter(
        per_token=per_token,
        per_token_squared=0.5 * 3 * attended,
        per_patch=per_patch,
        per_patch_squared=(3 if trains_vision else 1) * 4 * sizes.vision.depth * sizes.vision.hidden_size,
        per_supervised_token=(6 if trains_head else 4) * sizes.text.hidden_size * sizes.text.vocab_size,
    )


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations a second that a device could do at best.

    Published figures for known GPUs; elsewhere, also on a CPU, what one large matrix product reaches here and now.
    """
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    if not _SMALLER.search(name):
        for known, (half, single) in _PEAKS.items():
            if re.search(rf"\b{known}\b", name):  # an A1000 is not an A100
                return half if dtype in (torch.bfloat16, torch.float16) else single
    return _timed_peak(device, dtype, torch.get_num_threads())


def flop_counter(model: nn.Module, *, half_precision: bool, num_devices: int) -> FlopCounter | None:
    """Return how the utilisation of a run is reckoned; None for a family whose operations we do not count.

    Call it before weights are shared out over ranks. The model need not be on its GPU yet; ``half_precision`` means
    products in bfloat16 under autocast.
    """
    weight = next(model.parameters())
    config = inner_model(model).config
    if not family_of(config.model_type, where="the model").is_sized:
        return None
    # The trainer moves the model to the GPU later, and always where there is one.
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else weight.device
    peak = peak_flops(device, torch.bfloat16 if half_precision else weight.dtype)
    return replace(count_flops(model, config), peak=peak * num_devices)


@functools.cache
def _timed_peak(device: torch.device, dtype: torch.dtype, num_threads: int) -> float:
    """Time products once in a process, whose runs are then measured against the same peak."""
    from torch.utils.benchmark import Timer

    side = _MEASURED_SIDES.get(device.type, _MEASURED_SIDES["cpu"])
    matrix = torch.ones(side, side, device=device, dtype=dtype)
    timer = Timer("torch.mm(matrix, matrix)", globals={"torch": torch, "matrix": matrix}, num_threads=num_threads)
    return 2 * side**3 / timer.timeit(_MEASURED_PRODUCTS).mean
