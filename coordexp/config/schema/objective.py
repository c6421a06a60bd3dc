"""Sections ``objective`` and ``custom``: the losses and the switches of the method."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict, Field, StrictBool, model_validator

from coordexp.config.schema.fields import NaturalInt, NotNegative, Positive, PositiveInt, Section, declaration, key


class CoordTokens(Section):
    """Coord tokens in the data."""

    enabled: StrictBool = key(True, "results", decides=["base", "weights", "tokens"])
    """Write coordinates as coord tokens, one for each of 1000 bins; false: as three digits of text, the text arm."""
    skip_bbox_norm: StrictBool = key(True, "results", decides=["weights", "tokens"])
    """Accept boxes that are bins already, and do not scale them again."""


class CoordSoftCeW1(Section):
    """Group D: soft CE, Wasserstein-1 and the coord-vocabulary gate."""

    enabled: StrictBool = key(False, "results", decides=["loss"])
    """Switch on the three losses of the distribution over bins."""
    soft_ce_weight: NotNegative = key(1.0, "results", decides=["loss"])
    """Weight of the cross-entropy against a Gaussian around the true bin."""
    w1_weight: NotNegative = key(1.0, "results", decides=["loss"])
    """Weight of the Wasserstein-1 distance to that Gaussian."""
    gate_weight: NotNegative = key(1.0, "results", decides=["loss"])
    """Weight of the gate, -log of the coord vocabulary's probability: it makes a model emit coord tokens."""
    temperature: Positive = key(1.0, "results", decides=["loss"])
    """Divides the logits: of the bins in soft CE and W1, of the whole vocabulary in the gate."""
    target_sigma: Positive = key(2.0, "results", decides=["loss"])
    """Standard deviation of the target Gaussian, in bins: how soft the target is."""
    target_truncate: PositiveInt | None = key(16, "results", decides=["loss"])
    """Bins after which the target Gaussian is cut off; null: not at all."""


class IdRange(Section):
    """Token ids, both ends included."""

    start: NaturalInt = Field(json_schema_extra=declaration("results", ["base", "weights"]))
    """First id."""
    end: NaturalInt = Field(json_schema_extra=declaration("results", ["base", "weights"]))
    """Last id."""

    @model_validator(mode="after")
    def _is_in_order(self) -> "IdRange":
        if self.end < self.start:
            raise ValueError(f"end {self.end} is below start {self.start}")
        return self


class CoordOffset(Section):
    """The coord-offset adapter."""

    enabled: StrictBool = key(False, "results", decides=["base", "weights"])
    """Train an offset for each coord token's row of embedding and head, which stay frozen otherwise."""
    tie_head: StrictBool = key(True, "results", decides=["weights"])
    """One offset table for embedding and head; false: one table each."""
    ids: IdRange | tuple[NaturalInt, ...] | None = key(None, "results", decides=["base", "weights"])
    """Ids of the coord tokens that get an offset: start and end, or a list; null: all of the tokenizer's."""
    embed_lr: Positive | None = key(None, "results", decides=["weights"])
    """Peak learning rate of the embedding's offsets, or of the tied table; null: training.learning_rate."""
    head_lr: Positive | None = key(None, "results", decides=["weights"])
    """Peak learning rate of the head's offsets with tie_head: false; null: training.learning_rate."""
    weight_decay: NotNegative = key(0.0, "results", decides=["weights"])
    """Weight decay of the offsets."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = key("auto", "results", decides=["weights"])
    """Type of the offsets; auto is float32, because small updates round away in half precision."""

    @property
    def listed_ids(self) -> Sequence[int] | None:
        """The ids that were asked for, ascending; None for all coord tokens."""
        if isinstance(self.ids, IdRange):
            return range(self.ids.start, self.ids.end + 1)
        return None if self.ids is None else sorted(self.ids)

    @model_validator(mode="after")
    def _ids_are_distinct(self) -> "CoordOffset":
        if isinstance(self.ids, tuple):
            num_different = len(set(self.ids))
            if not self.ids or num_different < len(self.ids):
                raise ValueError(f"ids: got {len(self.ids)}, {num_different} of them different; expected each id once")
        return self


class Custom(Section):
    """Switches of the method, named as in the specification."""

    coord_tokens: CoordTokens = CoordTokens()
    coord_soft_ce_w1: CoordSoftCeW1 = CoordSoftCeW1()
    coord_offset: CoordOffset = CoordOffset()


Scalar = bool | int | float | str | None


class ExtraTerm(Section):
    """A further loss term: its weight, and the knobs that the term itself declares and checks."""

    model_config = ConfigDict(extra="allow")

    weight: NotNegative

    @model_validator(mode="before")
    @classmethod
    def _a_bare_number_is_the_weight(cls, value: object) -> object:
        return value if isinstance(value, Mapping | ExtraTerm) else {"weight": value}

    @model_validator(mode="after")
    def _knobs_are_single_values(self) -> "ExtraTerm":
        for name, value in (self.model_extra or {}).items():
            is_finite = not isinstance(value, float) or math.isfinite(value)
            if not isinstance(value, Scalar) or not is_finite:
                raise ValueError(f"{name}: got {value!r}, expected a number, text, true, false or null")
        return self

    @property
    def knobs(self) -> dict[str, Scalar]:
        """What was set besides the weight."""
        return dict(self.model_extra or {})


class Objective(Section):
    """Loss flags and weights: what the groups differ in."""

    use_coord_ce: StrictBool = key(True, "results", decides=["loss"])
    """Cross-entropy on coord tokens (groups A, C)."""
    use_coordexp_loss: StrictBool = key(False, "results", decides=["loss"])
    """Decode boxes as expectations over bins; alone it logs their diagnostics and adds no loss."""
    use_geom_loss: StrictBool = key(False, "results", decides=["loss"])
    """L1 and GIoU on the expected boxes (groups B, C); needs use_coordexp_loss."""
    lambda_coord: NotNegative = key(1.0, "results", decides=["loss"])
    """Weight of the geometric loss."""
    lambda_coord_ce: NotNegative = key(1.0, "results", decides=["loss"])
    """Weight of the cross-entropy on coord tokens."""
    alpha_l1: NotNegative = key(1.0, "results", decides=["loss"])
    """Weight of L1 within the geometric loss."""
    beta_giou: NotNegative = key(1.0, "results", decides=["loss"])
    """Weight of 1 - GIoU within the geometric loss."""
    extra: dict[str, ExtraTerm] = key({}, "results", decides=["loss", "terms"])
    """Further loss terms by name: a weight, or a mapping of weight and the term's own knobs."""

    @model_validator(mode="after")
    def _geometry_needs_boxes(self) -> "Objective":
        if self.use_geom_loss and not self.use_coordexp_loss:
            raise ValueError("use_geom_loss needs use_coordexp_loss: true (the loss is computed on expected boxes)")
        return self


@dataclass(frozen=True)
class TermWeight:
    """The weight of a term that has keys of its own: their product, in which a switch counts as 1 or 0."""

    factors: Mapping[str, float]
    """What each key says, by its dotted name; the switch first."""

    @property
    def value(self) -> float:
        return math.prod(self.factors.values(), start=1.0)

    @property
    def why_zero(self) -> str | None:
        """Say which key makes the weight 0, as ``objective.alpha_l1 is 0``; None if none does."""
        for name, factor in self.factors.items():
            if not factor:
                return f"{name} is false" if isinstance(factor, bool) else f"{name} is 0"
        return None
