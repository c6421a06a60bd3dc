"""Sections ``objective`` and ``custom``: the losses and the switches of the method."""

import math
from collections.abc import Mapping
from typing import Literal

from pydantic import ConfigDict, Field, StrictBool, model_validator

from coordexp.config.schema.fields import NaturalInt, NotNegative, Positive, PositiveInt, Section
from coordexp.coord_tokens.bins import NUM_BINS


class CoordTokens(Section):
    """Coord tokens in the data."""

    enabled: StrictBool = True
    skip_bbox_norm: StrictBool = True


class CoordSoftCeW1(Section):
    """Group D: soft CE, Wasserstein-1 and the coord-vocabulary gate."""

    enabled: StrictBool = False
    soft_ce_weight: NotNegative = 1.0
    w1_weight: NotNegative = 1.0
    gate_weight: NotNegative = 1.0
    temperature: Positive = 1.0
    target_sigma: Positive = 2.0
    target_truncate: PositiveInt | None = 16


class IdRange(Section):
    """Token ids, both ends included."""

    start: NaturalInt
    end: NaturalInt

    @model_validator(mode="after")
    def _holds_all_bins(self) -> "IdRange":
        if self.end - self.start + 1 != NUM_BINS:
            raise ValueError(f"start..end must hold {NUM_BINS} ids, got {self.end - self.start + 1}")
        return self


class CoordOffset(Section):
    """The coord-offset adapter."""

    enabled: StrictBool = False
    tie_head: StrictBool = True
    ids: IdRange | None = Field(default=None, description="checked against the tokenizer; None: take the tokenizer's")
    embed_lr: Positive = 1e-4
    head_lr: Positive = 1e-4
    weight_decay: NotNegative = 0.0
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"


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
            if not isinstance(value, Scalar) or (isinstance(value, float) and not math.isfinite(value)):
                raise ValueError(f"{name}: got {value!r}, expected a number, text, true, false or null")
        return self

    @property
    def knobs(self) -> dict[str, Scalar]:
        """What was set besides the weight."""
        return dict(self.model_extra or {})


class Objective(Section):
    """Loss flags and weights: what the groups differ in."""

    use_coord_ce: StrictBool = True
    use_coordexp_loss: StrictBool = False
    use_geom_loss: StrictBool = False
    lambda_coord: NotNegative = 1.0
    lambda_coord_ce: NotNegative = 1.0
    alpha_l1: NotNegative = 1.0
    beta_giou: NotNegative = 1.0
    extra: dict[str, ExtraTerm] = Field(
        default={},
        description="further loss terms by name: a weight, or a mapping of weight and the term's own knobs",
    )

    @model_validator(mode="after")
    def _geometry_needs_boxes(self) -> "Objective":
        if self.use_geom_loss and not self.use_coordexp_loss:
            raise ValueError("use_geom_loss needs use_coordexp_loss: true (the loss is computed on expected boxes)")
        return self
