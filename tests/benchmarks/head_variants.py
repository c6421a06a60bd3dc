"""The four ways through the head that ``bench_head.py`` compares, on one model, one batch and one set of losses.

Shapes: B sequences, T tokens of each, S supervised tokens, V vocabulary, D hidden, N coord tokens, M boxes.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from peft import TrainableTokensConfig, get_peft_model
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.loss.loss_utils import ForCausalLMLoss

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.expectation import expected_values
from coordexp.coord_tokens.soft_ce_w1 import gaussian_soft_targets, soft_cross_entropy, wasserstein_1
from coordexp.losses.coord_box import l1
from coordexp.losses.criterion import Criterion, WeightedTerm
from coordexp.losses.head import split_head
from coordexp.losses.terms.box_l1 import BoxL1
from coordexp.losses.terms.coord_ce import CoordCe
from coordexp.losses.terms.gate import Gate
from coordexp.losses.terms.soft_ce import SoftCe
from coordexp.losses.terms.text_ce import TextCe
from coordexp.losses.terms.w1 import W1
from tests.support.by_hand import term_inputs
from tests.support.terms import count_units

IGNORED = -100
SHAPE = SoftCe(sigma=2.0, truncate=16, temperature=1.0)


@dataclass(frozen=True)
class Sizes:
    batch: int
    tokens: int
    vocab: int
    hidden: int

    @property
    def first_id(self) -> int:
        return self.vocab - NUM_BINS


@dataclass(frozen=True)
class Batch:
    """Hidden states and labels already shifted; half of the supervised tokens are coord tokens, in boxes of four."""

    hidden_BTD: Tensor
    labels_BT: Tensor
    boxes_norm_xyxy_M4: Tensor
    first_id: int

    @property
    def is_coord(self) -> Tensor:
        return self.labels_BT >= self.first_id


@dataclass(frozen=True)
class Variant:
    forward: Callable[[Batch], Tensor]
    trained: Tensor


def make_batch(sizes: Sizes, share: float, *, device: str, dtype: torch.dtype) -> Batch:
    generator = torch.Generator().manual_seed(0)
    num_tokens = sizes.batch * sizes.tokens
    num_supervised = round(share * num_tokens)
    num_boxes = num_supervised // 8
    chosen = torch.randperm(num_tokens, generator=generator)[:num_supervised].sort().values
    ids = torch.randint(0, sizes.first_id, (num_supervised,), generator=generator)
    ids[: 4 * num_boxes] = torch.randint(sizes.first_id, sizes.vocab, (4 * num_boxes,), generator=generator)
    labels = torch.full((num_tokens,), IGNORED)
    labels[chosen] = ids
    hidden = torch.randn(sizes.batch, sizes.tokens, sizes.hidden, generator=generator)
    return Batch(
        hidden_BTD=hidden.to(device=device, dtype=dtype).requires_grad_(),
        labels_BT=labels.view(sizes.batch, sizes.tokens).to(device),
        boxes_norm_xyxy_M4=torch.rand(num_boxes, 4, generator=generator).to(device),
        first_id=sizes.first_id,
    )


def make_model(sizes: Sizes, *, device: str, dtype: torch.dtype) -> Qwen3ForCausalLM:
    """Return a frozen tied language model without a layer: an embedding and a head."""
    config = Qwen3Config(
        vocab_size=sizes.vocab,
        hidden_size=sizes.hidden,
        intermediate_size=8,
        num_hidden_layers=0,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        tie_word_embeddings=True,
        dtype=dtype,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen3ForCausalLM(config).to(dtype)
    return model.requires_grad_(False)


def make_offset(sizes: Sizes, *, device: str) -> nn.Parameter:
    values = 0.02 * torch.randn(NUM_BINS, sizes.hidden, generator=torch.Generator().manual_seed(1))
    return nn.Parameter(values.to(device))


def hf_cross_entropy(model: Qwen3ForCausalLM, offset_KD: nn.Parameter) -> Variant:
    """(a) What transformers does: all logits, CE on the supervised ones. No coord rows are trained."""

    def forward(batch: Batch) -> Tensor:
        return _token_loss(model.lm_head(batch.hidden_BTD), batch)

    return Variant(forward, offset_KD)


def scatter_hook(model: Qwen3ForCausalLM, offset_KD: nn.Parameter) -> Variant:
    """(b) A forward hook on the head that adds a ``[B, T, V]`` tensor of zeros and coord deltas."""
    first_id = model.config.vocab_size - NUM_BINS
    ids = torch.arange(first_id, model.config.vocab_size, device=offset_KD.device)

    def hook(_head: nn.Module, args: tuple[Tensor], logits_BTV: Tensor) -> Tensor:
        deltas = torch.zeros_like(logits_BTV)
        deltas[..., ids] = args[0] @ offset_KD.to(args[0].dtype).t()
        return logits_BTV + deltas

    def forward(batch: Batch) -> Tensor:
        handle = model.lm_head.register_forward_hook(hook)
        try:
            logits_BTV = model.lm_head(batch.hidden_BTD)
        finally:
            handle.remove()
        return _token_loss(logits_BTV, batch) + _coord_losses(logits_BTV, batch)

    return Variant(forward, offset_KD)


def peft_tokens(model: Qwen3ForCausalLM, offset_KD: nn.Parameter) -> Variant:
    """(c) PEFT's own layer for tied trainable tokens, with the losses of (b)."""
    first_id = model.config.vocab_size - NUM_BINS
    ids = list(range(first_id, model.config.vocab_size))
    weight = model.lm_head.weight
    own_model = copy.deepcopy(model, {id(weight): weight})  # PEFT changes the model in place; the table is shared
    peft_model = get_peft_model(own_model, TrainableTokensConfig(token_indices=ids, target_modules=["embed_tokens"]))
    head = peft_model.get_output_embeddings()
    (rows_KD,) = [parameter for parameter in head.parameters() if parameter.requires_grad]
    with torch.no_grad():
        rows_KD += offset_KD

    def forward(batch: Batch) -> Tensor:
        logits_BTV = head(batch.hidden_BTD)
        return _token_loss(logits_BTV, batch) + _coord_losses(logits_BTV, batch)

    return Variant(forward, rows_KD)


def split(model: Qwen3ForCausalLM, offset_KD: nn.Parameter) -> Variant:
    """(d) Ours: supervised rows by a mask, the split head, the terms of the package."""
    weight_VD = model.get_output_embeddings().weight
    terms = (TextCe(), CoordCe(), Gate(), BoxL1(), SHAPE, W1(sigma=2.0, truncate=16, temperature=1.0))
    criterion = Criterion([WeightedTerm(term, 1.0) for term in terms])

    def forward(batch: Batch) -> Tensor:
        mask_BT = batch.labels_BT != IGNORED
        targets_S = batch.labels_BT[mask_BT]
        hidden_SD = batch.hidden_BTD[mask_BT]
        is_coord_S = (targets_S >= batch.first_id) & (targets_S < batch.first_id + NUM_BINS)
        keys = {"first_id": batch.first_id, "coord_rows_N": is_coord_S.nonzero().squeeze(1)}
        out = split_head(hidden_SD, weight_VD, targets_S, offset_KD=offset_KD, **keys)
        inputs = term_inputs(out, targets_S, batch.boxes_norm_xyxy_M4, first_id=batch.first_id)
        return criterion(inputs, count_units(inputs).to(targets_S.device))[0]

    return Variant(forward, offset_KD)


VARIANTS = {"a": hf_cross_entropy, "b": scatter_hook, "c": peft_tokens, "d": split}
NAMES = {
    "a": "(a) HF full-logits CE only",
    "b": "(b) full logits + scatter hook + coord losses",
    "c": "(c) PEFT trainable_token_indices + coord losses",
    "d": "(d) split head + the same coord losses",
}


def _token_loss(logits_BTV: Tensor, batch: Batch) -> Tensor:
    return ForCausalLMLoss(logits_BTV, None, logits_BTV.shape[-1], shift_labels=batch.labels_BT)


def _coord_losses(logits_BTV: Tensor, batch: Batch) -> Tensor:
    """Return soft CE + W1 + gate + expectation L1, as one writes them for full logits."""
    is_coord_BT = batch.is_coord
    bins_N = batch.labels_BT[is_coord_BT] - batch.first_id
    logits_NV = logits_BTV[is_coord_BT].float()
    logits_NK = logits_NV[:, batch.first_id :]
    targets_NK = gaussian_soft_targets(bins_N, sigma=SHAPE.sigma, truncate=SHAPE.truncate)
    gate_N = logits_NV.logsumexp(dim=1) - logits_NK.logsumexp(dim=1)
    boxes_M4 = expected_values(logits_NK).view(-1, 4)
    return (
        soft_cross_entropy(logits_NK, targets_NK).mean()
        + wasserstein_1(logits_NK.softmax(dim=1), targets_NK).mean()
        + gate_N.mean()
        + l1(boxes_M4, batch.boxes_norm_xyxy_M4).mean()
    )
