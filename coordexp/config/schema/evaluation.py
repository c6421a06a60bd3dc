"""Section ``evaluation``: how a model is evaluated, equal for every group."""

from typing import Annotated, Literal

from pydantic import model_validator

from coordexp.config.schema.fields import DISTINCT, Name, NaturalInt, PositiveInt, Section, key
from coordexp.metrics import BoxKind

ScoreName = Literal["coord", "desc", "coord_desc", "constant"]


class Evaluation(Section):
    """How a model is evaluated, equal for every group."""

    batch_size: PositiveInt = key(16, "results", decides=["evaluation"])
    """Images answered at once; more need more memory."""
    max_new_tokens: PositiveInt = key(512, "results", decides=["evaluation"])
    """Tokens of an answer; a longer one loses its last objects and is counted as cut off."""
    decoding: Annotated[tuple[Literal["constrained", "free"], ...], DISTINCT] = key(
        ("constrained", "free"), "results", decides=["evaluation"]
    )
    """constrained follows the object grammar and is the headline; free shows malformed objects."""
    score: ScoreName = key("coord_desc", "results", decides=["evaluation"])
    """Score of a detection from raw logits: of its coordinates, its description, 0.7 and 0.3 of both, or 1."""
    aliases: dict[str, str] = key({}, "results", decides=["evaluation"])
    """Further descriptions of a category: description -> category name."""
    reading: dict[Name, BoxKind] = key({}, "plan")
    """How a group's headline reads its boxes, group -> argmax or expected. By default: argmax if cross-entropy alone
    trains its coordinates, otherwise expected."""
    every_steps: PositiveInt | None = key(None, "results", decides=["evaluation"])
    """Steps between evaluations on a subset, for AP over steps; null: only the end."""
    subset_images: PositiveInt = key(200, "results", decides=["evaluation"])
    """Validation images of an evaluation during training."""
    max_images: PositiveInt | None = key(None, "results", decides=["evaluation"])
    """Validation images that count, in AP and in all else, chosen by chance and data.split_seed: the same for every
    group and every experiment.seed; fewer are among more, and null takes all."""
    loss_images: NaturalInt = key(200, "results", decides=["evaluation"])
    """Validation images of the teacher-forced losses."""

    @model_validator(mode="after")
    def _headline_is_there(self) -> "Evaluation":
        if "constrained" not in self.decoding:
            raise ValueError("decoding must include constrained, the headline of every comparison")
        return self
