"""Section ``evaluation``: how a model is evaluated, equal for every group."""

from typing import Literal

from pydantic import model_validator

from coordexp.config.schema.fields import Name, NaturalInt, PositiveInt, Section, key
from coordexp.metrics import BoxKind

ScoreName = Literal["coord", "desc", "coord_desc", "constant"]


class Evaluation(Section):
    """How a model is evaluated, equal for every group."""

    batch_size: PositiveInt = key(
        16, "results", "Images answered at once; more need more memory.", decides=["evaluation"]
    )
    max_new_tokens: PositiveInt = key(
        512,
        "results",
        "Tokens of an answer; a longer one loses its last objects and is counted as cut off.",
        decides=["evaluation"],
    )
    decoding: tuple[Literal["constrained", "free"], ...] = key(
        ("constrained", "free"),
        "results",
        "constrained follows the object grammar and is the headline; free shows malformed objects.",
        decides=["evaluation"],
    )
    score: ScoreName = key(
        "coord_desc",
        "results",
        "Score of a detection from raw logits: of its coordinates, its description, 0.7 and 0.3 of both, or 1.",
        decides=["evaluation"],
    )
    aliases: dict[str, str] = key(
        {}, "results", "Further descriptions of a category: description -> category name.", decides=["evaluation"]
    )
    reading: dict[Name, BoxKind] = key(
        {},
        "plan",
        "How a group's headline reads its boxes, group -> argmax or expected; default: argmax if cross-entropy "
        "alone trains its coordinates, else expected.",
    )
    every_steps: PositiveInt | None = key(
        None,
        "results",
        "Steps between evaluations on a subset, for AP over steps; null: only the end.",
        decides=["evaluation"],
    )
    subset_images: PositiveInt = key(
        200, "results", "Validation images of an evaluation during training.", decides=["evaluation"]
    )
    loss_images: NaturalInt = key(
        200, "results", "Validation images of the teacher-forced losses.", decides=["evaluation"]
    )

    @model_validator(mode="after")
    def _headline_is_there(self) -> "Evaluation":
        if "constrained" not in self.decoding:
            raise ValueError("decoding must include constrained, the headline of every comparison")
        if len(set(self.decoding)) != len(self.decoding):
            raise ValueError(f"decoding must name each way once, got {list(self.decoding)}")
        return self
