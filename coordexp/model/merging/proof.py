"""Prove a merged checkpoint at its weights, and say what rounding loses of what was trained.

The proof: every number of every changed weight is base plus PEFT's own delta, rounded once to the stored dtype; every
other weight has the base's bits. A tolerance on logits cannot serve: in bfloat16 the rounding of activations alone
moves them by more than a wrong layer does.

Shapes: B batch, L tokens, V vocabulary, K adapted ids, D hidden, O x I a linear layer.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
LOST_TOO_MUCH = 0.1  # of the change that training made to the logits

Inputs = Mapping[str, Tensor]  # of one forward pass

_BIN_STRIDE = 61  # 17 bins over the whole range, shared with no power of two
_LAST_TOKENS = 64  # of a sample, its answer among them: the logits of all tokens would take a gigabyte
# A product and a sum in float32, of the largest number in them: what decides a tie between two neighbours.
_FLOAT32_ROUNDING = 2.0**-20


@dataclass
class WeightProof:
    """What was found when each merged weight was compared with base plus adapter.

    Attributes:
        num_compared: numbers that an adapter changes.
        num_ties: of these, numbers that lie as far from the exact sum as their neighbour does, within float32.
        errors: squared norm of what rounding took or added, by kind of module.
        changes: squared norm of what training added, by kind of module.
    """

    num_compared: int = 0
    num_ties: int = 0
    errors: dict[str, float] = field(default_factory=dict)
    changes: dict[str, float] = field(default_factory=dict)

    def lost(self) -> dict[str, float]:
        """Norm of the rounding error over norm of the change, by kind of module; unchanged kinds are absent."""
        return {kind: math.sqrt(self.errors[kind] / total) for kind, total in self.changes.items() if total > 0}

    def add(self, name: str, merged: Tensor, base: Tensor, delta: Tensor, magnitude: Tensor | None = None) -> None:
        """Add a weight or rows that changed; refuse what is not base plus ``delta`` (under DoRA of ``magnitude``)."""
        before = base.float()
        expected = _sum(before, delta, magnitude)
        rounded = expected.to(merged.dtype)
        if (differs := rounded != merged).any():
            exact = _sum(base.double(), delta.double(), magnitude)[differs]
            scale = float(before.abs().max() + delta.abs().max())
            farther = (merged[differs].double() - exact).abs() - (rounded[differs].double() - exact).abs()
            # Written so that NaN is wrong, too.
            if wrong := int((~(farther <= _FLOAT32_ROUNDING * scale)).sum()):
                raise CheckpointError(
                    f"{name}: {wrong:,} of {merged.numel():,} merged numbers are not base plus adapter rounded once; "
                    "is the base the one that the adapter was trained on?"
                )
        kind = _kind(name)
        error, change = merged.float() - expected, expected - before
        self.errors[kind] = self.errors.get(kind, 0.0) + float(error.square().sum(dtype=torch.float64))
        self.changes[kind] = self.changes.get(kind, 0.0) + float(change.square().sum(dtype=torch.float64))
        self.num_compared += merged.numel()
        self.num_ties += int(differs.sum())


@torch.no_grad()
def prove_weights(
    merged: PreTrainedModel, base: StoredModel, adapted: PeftModel, *, trained: torch.dtype | None
) -> WeightProof:
    """Compare every weight of a merged model, as stock transformers loads it, with those of its base and an adapter.

    Args:
        merged: the model.
        base: the checkpoint on disk.
        adapted: a model of that shape with the adapter on it, as PEFT loads it; its base weights are not read.
        trained: dtype the base was rounded to when the adapter was trained; None for as stored.
    """
    inner = inner_model(adapted)
    layers = {f"{name}.weight": layer for name, layer in inner.named_modules() if isinstance(layer, LoraLayer)}
    offset = active_offset(adapted)
    tables = {} if offset is None else {EMBEDDING: offset.embed_offset, HEAD: head_offset_table(offset)}
    proof = WeightProof()
    for name, tensor in merged.state_dict().items():
        before = base.weights.read(EMBEDDING if name == HEAD and HEAD not in base.shapes else name)
        before = before.to(trained) if trained is not None and before.is_floating_point() else before
        if name in layers:
            delta, magnitude = _trained(layers[name])
            proof.add(name, tensor, before, delta, magnitude)
        elif name in tables and offset is not None:
            ids = offset.coord_ids
            others = (tensor != before.to(tensor.dtype)).any(dim=1)
            others[ids] = False
            if others.any():
                raise CheckpointError(
                    f"{name}: row {int(others.nonzero()[0])} changed, which the adapter does not list"
                )
            proof.add(name, tensor[ids], before[ids], tables[name].float())
        elif not torch.equal(tensor, before.to(tensor.dtype)):
            raise CheckpointError(f"{name}: differs from the base, although the adapter does not change it")
    return proof


def _trained(layer: LoraLayer) -> tuple[Tensor, Tensor | None]:
    (name,) = layer.active_adapters
    assert isinstance(layer, LinearLora)
    delta = layer.get_delta_weight(name).float()
    vectors = layer.lora_magnitude_vector
    return delta, vectors[name].weight if name in vectors else None  # pyright: ignore[reportReturnType]


def _sum(base: Tensor, delta: Tensor, magnitude: Tensor | None) -> Tensor:
    total = base + delta
    if magnitude is None:
        return total
    return (magnitude.to(total.dtype) / torch.linalg.vector_norm(total, dim=1)).unsqueeze(1) * total


def _kind(name: str) -> str:
    if name in (EMBEDDING, HEAD):
        return "coord rows"
    parts = name.split(".")
    return f"vision {parts[-2]}" if "visual" in parts else parts[-2]


@torch.no_grad()
def logits_of(model: nn.Module, samples: Sequence[Inputs], *, last: int = 0) -> list[Tensor]:
    """Return the float32 logits ``[B, L, V]`` of each sample on the CPU, of all tokens or the ``last`` ones."""
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    try:
        inputs = [{name: tensor.to(device) for name, tensor in sample.items()} for sample in samples]
        return [model(**one, use_cache=False, logits_to_keep=last).logits.float().cpu() for one in inputs]
    finally:
        model.train(was_training)


def answer_logits(model: nn.Module, samples: Sequence[Inputs]) -> list[Tensor]:
    return logits_of(model, samples, last=_LAST_TOKENS)


def default_samples(processor: Processor) -> list[Inputs]:
    """Return a generated picture with a prompt and an answer: in coord tokens if there are any, else in digits."""
    picture, shapes = draw_scene(np.random.default_rng(7))
    content = [{"type": "image"}, {"type": "text", "text": DEFAULT_PROMPT}]
    prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    known = processor.tokenizer.get_vocab()
    markers = [token for tokens in STRUCTURE_TOKENS.values() for token in tokens if token is not None]
    coords = [int_to_token(k) for k in range(0, NUM_BINS, _BIN_STRIDE)]
    answer = [*(token for token in markers if token in known), CATEGORIES[shapes[0].category]]
    answer += [token for token in coords if token in known] or ["034 340 560 789"]
    answer += ["<|im_end|>"]
    return [processor(text=prompt + "".join(answer), images=picture)]


@dataclass(frozen=True)
class MergeReport:
    """What a merge did, and what it lost.

    Attributes:
        dtype: of the result's weights.
        num_offset_rows: embedding rows that changed.
        num_unused_weights: tensors of the base that its model has no place for, and that stayed behind.
        left_behind: which these are, for a person.
        template: arguments that whoever serves the result must give its chat template, as training did.
        ties_fraction: of the changed numbers, how many lie between two neighbours of the dtype as float32 computes.
        lost_at_weights: norm of the rounding error over norm of the change that training made, by kind of module.
        lost_at_logits: rms(merged - adapter) / rms(adapter - base) on the samples; None where it is not defined.
        max_abs_logit_diff: largest difference of a logit, merged against adapter; None where it was not measured.
        max_abs_logit: the adapter's largest logit, for scale.
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
        """Add how far merging moved the logits of samples, beside how far training had moved them."""
        moved, lost = _squared_distance(base, adapter), _squared_distance(adapter, merged)
        finite = math.isfinite(moved) and math.isfinite(lost)
        largest = max(float((b - a).abs().max()) for a, b in zip(adapter, merged, strict=True))
        return replace(
            self,
            lost_at_logits=math.sqrt(lost / moved) if finite and moved > 0 else None,
            max_abs_logit_diff=largest if finite else None,
            max_abs_logit=max(float(one.abs().max()) for one in adapter),
        )

    @property
    def most_lost(self) -> float | None:
        return max(self.lost_at_weights.values(), default=None)

    @property
    def sentence(self) -> str:
        """What the result is beside the model that was trained."""
        if self.is_whole:
            return "every weight is the trained model's, bit for bit"
        logits = "not measured" if self.lost_at_logits is None else f"{self.lost_at_logits:.2g}"
        weights = "nothing" if self.most_lost is None else f"up to {self.most_lost:.2g}"
        return f"of what training changed, rounding loses {logits} at the logits and {weights} at the weights (by kind)"

    @property
    def warning(self) -> str:
        """What a user should know before the result is used; empty where rounding lost little."""
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
        write_json(directory / REPORT_FILE, asdict(self), indent=2)


def _squared_distance(ones: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    return sum(float((b - a).square().sum(dtype=torch.float64)) for a, b in zip(ones, others, strict=True))
