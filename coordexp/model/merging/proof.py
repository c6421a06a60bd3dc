"""Prove a merged checkpoint by its weights, and measure how much of the training rounding loses.

The proof: every number of every changed weight is base plus PEFT's own delta, rounded once to the stored dtype. Every
other weight has the bits of the base. A tolerance on logits would prove nothing: in bfloat16 the rounding of
activations alone moves them more than a wrong layer does.

Shapes: B batch, L tokens, V vocabulary, K adapted ids, D hidden, O x I a linear layer.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from peft import PeftModel
from peft.tuners.lora import Linear as LinearLora
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from coordexp.coord_tokens.codec import NUM_BINS, int_to_token
from coordexp.coord_tokens.offset_adapter import active_offset, head_offset_table, inner_model
from coordexp.coord_tokens.vocab import STRUCTURE_TOKENS
from coordexp.data.prompt import DEFAULT_PROMPT
from coordexp.data.shapes import CATEGORIES, draw_scene
from coordexp.errors import CheckpointError
from coordexp.files import write_json
from coordexp.model.checkpoint.stored_model import EMBEDDING, HEAD, StoredModel
from coordexp.model.processor import Processor

REPORT_FILE = "merge_report.json"
LOST_TOO_MUCH = 0.1  # share of the change that training made to the logits

Inputs = Mapping[str, Tensor]  # arguments of one forward pass

_BIN_STRIDE = 61  # gives 17 bins over the whole range; a prime, so that they fall into no regular pattern
_LAST_TOKENS = 64  # of a sample; they include its answer. The logits of all tokens would take a gigabyte
# Error of a product and a sum in float32, relative to the largest number in them. Two neighbours whose distances from
# the exact sum differ by less are a tie.
_FLOAT32_ROUNDING = 2.0**-20


@dataclass
class WeightProof:
    """What was found when each merged weight was compared with base plus adapter.

    Attributes:
        num_compared: numbers that an adapter changes.
        num_ties: how many of these are as far from the exact sum as their neighbour in the dtype, within float32.
        errors: squared norm of the rounding error, by kind of module.
        changes: squared norm of the change that training made, by kind of module.
    """

    num_compared: int = 0
    num_ties: int = 0
    errors: dict[str, float] = field(default_factory=dict)
    changes: dict[str, float] = field(default_factory=dict)

    def lost(self) -> dict[str, float]:
        """Return norm of the rounding error / norm of the change, by kind of module. Unchanged kinds are left out."""
        return {kind: math.sqrt(self.errors[kind] / total) for kind, total in self.changes.items() if total > 0}

    def add(self, name: str, merged: Tensor, base: Tensor, delta: Tensor, magnitude: Tensor | None = None) -> None:
        """Check a weight, or rows of one, that the adapter changes, and add it to the counts.

        Two correct computations may round a number that is in the middle of two neighbours to different sides. So a
        number that differs from ours is accepted if it is as close to the exact sum, in float64, as ours.

        Args:
            name: of the weight.
            merged: its numbers in the merged checkpoint.
            base: the same in the base.
            delta: what the adapter adds.
            magnitude: ``[O]`` row norms of a DoRA layer; None for anything else.

        Raises:
            CheckpointError: if a number is not base plus ``delta``, rounded once.
        """
        base_float32 = base.float()
        expected = _sum(base_float32, delta, magnitude)
        rounded = expected.to(merged.dtype)
        differs = rounded != merged
        if differs.any():
            exact = _sum(base.double(), delta.double(), magnitude)[differs]
            scale = float(base_float32.abs().max() + delta.abs().max())
            merged_error = (merged[differs].double() - exact).abs()
            rounded_error = (rounded[differs].double() - exact).abs()
            is_tie = merged_error - rounded_error <= _FLOAT32_ROUNDING * scale  # False for NaN
            num_wrong = int((~is_tie).sum())
            if num_wrong:
                raise CheckpointError(
                    f"{name}: {num_wrong:,} of {merged.numel():,} merged numbers are not base plus adapter rounded "
                    "once; is the base the one that the adapter was trained on?"
                )
        kind = _kind(name)
        error = merged.float() - expected
        change = expected - base_float32
        self.errors[kind] = self.errors.get(kind, 0.0) + float(error.square().sum(dtype=torch.float64))
        self.changes[kind] = self.changes.get(kind, 0.0) + float(change.square().sum(dtype=torch.float64))
        self.num_compared += merged.numel()
        self.num_ties += int(differs.sum())


@torch.no_grad()
def prove_weights(
    merged: PreTrainedModel, base: StoredModel, adapted: PeftModel, *, trained: torch.dtype | None
) -> WeightProof:
    """Compare every weight of a merged model with base plus adapter.

    Args:
        merged: the model as stock transformers loads it.
        base: the checkpoint on disk.
        adapted: a model of the same shape with the adapter on it, as PEFT loads it; its base weights are not read.
        trained: dtype that the base was rounded to when the adapter was trained; None if it was left as stored.

    Returns:
        Counts and errors.

    Raises:
        CheckpointError: if a weight is not what it should be; the message names it.
    """
    inner = inner_model(adapted)
    layers = {f"{name}.weight": layer for name, layer in inner.named_modules() if isinstance(layer, LoraLayer)}
    offset = active_offset(adapted)
    tables = {} if offset is None else {EMBEDDING: offset.embed_offset, HEAD: head_offset_table(offset)}
    proof = WeightProof()
    for name, tensor in merged.state_dict().items():
        is_split_head = name == HEAD and HEAD not in base.shapes  # the base has one table, the merged model two
        base_tensor = base.weights.read(EMBEDDING if is_split_head else name)
        if trained is not None and base_tensor.is_floating_point():
            base_tensor = base_tensor.to(trained)
        if name in layers:
            delta, magnitude = _trained(layers[name])
            proof.add(name, tensor, base_tensor, delta, magnitude)
        elif name in tables and offset is not None:
            ids = offset.coord_ids
            row_differs_V = (tensor != base_tensor.to(tensor.dtype)).any(dim=1)
            row_differs_V[ids] = False
            if row_differs_V.any():
                raise CheckpointError(
                    f"{name}: row {int(row_differs_V.nonzero()[0])} changed, which the adapter does not list"
                )
            proof.add(name, tensor[ids], base_tensor[ids], tables[name].float())
        elif not torch.equal(tensor, base_tensor.to(tensor.dtype)):
            raise CheckpointError(f"{name}: differs from the base, although the adapter does not change it")
    return proof


def _trained(layer: LoraLayer) -> tuple[Tensor, Tensor | None]:
    """Return PEFT's delta of a layer, ``[O, I]``, and under DoRA its row norms, ``[O]``."""
    (name,) = layer.active_adapters
    assert isinstance(layer, LinearLora)
    delta = layer.get_delta_weight(name).float()
    vectors = layer.lora_magnitude_vector
    return delta, vectors[name].weight if name in vectors else None  # pyright: ignore[reportReturnType]


def _sum(base: Tensor, delta: Tensor, magnitude: Tensor | None) -> Tensor:
    """Return base plus delta, under DoRA with its rows rescaled to ``magnitude``."""
    total = base + delta
    if magnitude is None:
        return total
    factor_O = magnitude.to(total.dtype) / torch.linalg.vector_norm(total, dim=1)
    return factor_O.unsqueeze(1) * total


def _kind(name: str) -> str:
    """Return the kind of module that a weight belongs to, such as ``q_proj`` or ``vision qkv``."""
    if name in (EMBEDDING, HEAD):
        return "coord rows"
    words = name.split(".")
    module = words[-2]
    return f"vision {module}" if "visual" in words else module


@torch.no_grad()
def logits_of(model: nn.Module, samples: Sequence[Inputs], *, last: int = 0) -> list[Tensor]:
    """Return the float32 logits ``[B, L, V]`` of each sample on the CPU.

    Args:
        model: keeps its mode.
        samples: arguments of one forward pass each.
        last: how many tokens from the end have logits; 0 for all.
    """
    was_training = model.training
    device = next(model.parameters()).device
    logits: list[Tensor] = []
    model.eval()
    try:
        for sample in samples:
            inputs = {name: tensor.to(device) for name, tensor in sample.items()}
            output = model(**inputs, use_cache=False, logits_to_keep=last)
            logits.append(output.logits.float().cpu())
    finally:
        model.train(was_training)
    return logits


def answer_logits(model: nn.Module, samples: Sequence[Inputs]) -> list[Tensor]:
    """Return the logits of the last tokens of each sample, among which is its answer."""
    return logits_of(model, samples, last=_LAST_TOKENS)


def default_samples(processor: Processor) -> list[Inputs]:
    """Return one sample: a generated picture, a prompt, and an answer in coord tokens, or in digits without them."""
    picture, shapes = draw_scene(np.random.default_rng(7))
    content = [{"type": "image"}, {"type": "text", "text": DEFAULT_PROMPT}]
    prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    ids = processor.tokenizer.get_vocab()
    markers = [token for token in chain(*STRUCTURE_TOKENS.values()) if token is not None and token in ids]
    coords = [int_to_token(k) for k in range(0, NUM_BINS, _BIN_STRIDE)]
    numbers = [token for token in coords if token in ids] or ["034 340 560 789"]
    answer = [*markers, CATEGORIES[shapes[0].category], *numbers, "<|im_end|>"]
    return [processor(text=prompt + "".join(answer), images=picture)]


@dataclass(frozen=True)
class MergeReport:
    """What a merge did, and what it lost.

    Attributes:
        dtype: dtype of the result's weights.
        tie_word_embeddings: whether embedding and head of the result are one table.
        num_merged_layers: linear layers that changed.
        num_offset_rows: embedding rows that changed.
        num_unused_weights: tensors of the base that its model has no place for, and that were left out.
        left_behind: which tensors these are, for a person.
        template: arguments that a server of the result must give its chat template, as training did.
        ties_fraction: share of the changed numbers that are in the middle of two neighbours, within float32.
        lost_at_weights: norm of the rounding error / norm of the change that training made, by kind of module.
        lost_at_logits: rms(merged - adapter) / rms(adapter - base) on the samples; None if it is not defined.
        max_abs_logit_diff: largest difference of a logit between merged model and adapter; None if not measured.
        max_abs_logit: largest logit of the adapter, for scale.
        is_whole: whether all weights were trained, so that they were saved as they are and nothing was merged.
    """

    dtype: str
    tie_word_embeddings: bool
    num_merged_layers: int = 0
    num_offset_rows: int = 0
    num_unused_weights: int = 0
    left_behind: str = ""
    template: Mapping[str, bool] = field(default_factory=dict)
    ties_fraction: float = 0.0
    lost_at_weights: Mapping[str, float] = field(default_factory=dict)
    lost_at_logits: float | None = None
    max_abs_logit_diff: float | None = None
    max_abs_logit: float | None = None
    is_whole: bool = False

    def with_logits(self, base: Sequence[Tensor], adapter: Sequence[Tensor], merged: Sequence[Tensor]) -> "MergeReport":
        """Return the report with what merging changed in the logits, relative to what training changed.

        Args:
            base: logits of the base on each sample.
            adapter: logits of the base with its adapter.
            merged: logits of the merged model.
        """
        change = _squared_distance(base, adapter)
        error = _squared_distance(adapter, merged)
        are_finite = math.isfinite(change) and math.isfinite(error)
        differences = [float((after - before).abs().max()) for before, after in zip(adapter, merged, strict=True)]
        return replace(
            self,
            lost_at_logits=math.sqrt(error / change) if are_finite and change > 0 else None,
            max_abs_logit_diff=max(differences) if are_finite else None,
            max_abs_logit=max(float(logits.abs().max()) for logits in adapter),
        )

    @property
    def most_lost(self) -> float | None:
        """The largest of ``lost_at_weights``."""
        return max(self.lost_at_weights.values(), default=None)

    @property
    def sentence(self) -> str:
        """How the result compares with the model that was trained."""
        if self.is_whole:
            return "every weight is the trained model's, bit for bit"
        logits = "not measured" if self.lost_at_logits is None else f"{self.lost_at_logits:.2g}"
        weights = "nothing" if self.most_lost is None else f"up to {self.most_lost:.2g}"
        return f"of what training changed, rounding loses {logits} at the logits and {weights} at the weights (by kind)"

    @property
    def warning(self) -> str:
        """What a user should know before using the result; "" if rounding lost little."""
        if self.lost_at_logits is None or self.lost_at_logits <= LOST_TOO_MUCH:
            return ""
        return (
            f"merging in {self.dtype} loses {self.lost_at_logits:.0%} of what training changed in the logits; "
            "merge --dtype float32 keeps it"
        )

    def rows(self) -> list[tuple[str, str]]:
        """Return names and values for the screen."""
        rows = [
            ("dtype", self.dtype),
            ("embedding and head", "tied" if self.tie_word_embeddings else "untied"),
        ]
        if self.is_whole:
            rows.append(("proof", self.sentence))
        else:
            rows += self._rows_of_adapter()
        if self.left_behind:
            rows.append(("left behind", self.left_behind))
        if self.template:
            rows.append(("arguments of its chat template", json.dumps(self.template)))
        return rows

    def _rows_of_adapter(self) -> list[tuple[str, str]]:
        lost = ", ".join(f"{kind} {value:.2g}" for kind, value in sorted(self.lost_at_weights.items()))
        rows = [
            ("layers merged", f"{self.num_merged_layers:,}"),
            ("rows changed", f"{self.num_offset_rows:,}"),
            ("proof", f"each weight is base plus adapter, rounded once ({self.ties_fraction:.1g} of them ties)"),
        ]
        if self.max_abs_logit_diff is not None:
            scale = f"of {self.max_abs_logit:.3g}, the largest"
            rows.append(("largest difference of a logit", f"{self.max_abs_logit_diff:.2e} {scale}"))
        if self.lost_at_logits is not None:
            rows.append(("lost by rounding, at the logits", f"{self.lost_at_logits:.2g} of what training changed"))
        if lost:
            rows.append(("lost by rounding, at the weights", lost))
        return rows

    def write(self, directory: Path) -> None:
        """Write ``merge_report.json``."""
        write_json(directory / REPORT_FILE, asdict(self), indent=2)


def _squared_distance(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """Return the squared norm of the difference over all samples."""
    return sum(float((b - a).square().sum(dtype=torch.float64)) for a, b in zip(before, after, strict=True))
