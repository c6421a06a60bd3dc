"""Sections ``objective`` and ``custom``: the losses and the switches of the method."""

from typing import Literal

from pydantic import Field, StrictBool, model_validator

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


class Objective(Section):
    """Loss flags and weights: what the groups differ in."""

    use_coord_ce: StrictBool = True
    use_coordexp_loss: StrictBool = False
    use_geom_loss: StrictBool = False
    lambda_coord: NotNegative = 1.0
    lambda_coord_ce: NotNegative = 1.0
    alpha_l1: NotNegative = 1.0
    beta_giou: NotNegative = 1.0
    extra: dict[str, NotNegative] = Field(default={}, description="further terms by name, with their weights")

    @model_validator(mode="after")
    def _geometry_needs_boxes(self) -> "Objective":
        if self.use_geom_loss and not self.use_coordexp_loss:
            raise ValueError("use_geom_loss needs use_coordexp_loss: true (the loss is computed on expected boxes)")
        return self
