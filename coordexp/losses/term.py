"""What a loss term is: a frozen object with knobs, and a method that gives its sum over one batch.

Shapes: T supervised tokens, N coord tokens, K bins, M boxes, U units.
"""

# A term is written by the user: what is annotated as a Tensor is checked nevertheless.
# pyright: reportUnnecessaryIsInstance=false

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from coordexp.coord_tokens.expectation import expected_values
from coordexp.coord_tokens.soft_ce_w1 import gaussian_soft_targets
from coordexp.errors import ConfigError
from coordexp.losses.head import HeadOutput

Unit = Literal["tokens", "text_tokens", "coord_tokens", "boxes"]

UNITS: tuple[Unit, ...] = get_args(Unit)
"""The order of every vector of unit counts, ``[U]``."""

Reads = Literal["bins", "digits", "any"]
"""Which numbers a term can read: the distribution over 1000 bins at a coord token, that over ten digits at a digit of
the text arm, or either."""


@dataclass(frozen=True)
class TermInputs:
    """One batch as the terms see it.

    In the text arm a coordinate is three digits, and each of them is what a coord token is otherwise: a coord position,
    counted as one of the ``coord_tokens``.

    Attributes:
        head: the logits at supervised positions, or rather what the terms need of them.
        is_coord_T: ``[T]`` bool, the true token carries a coordinate; a digit in a description does not.
        coord_bins_N: ``[N]`` int64 true bins, or true digits.
        coord_places_N: ``[N]`` int64, which token of its coordinate each is: 0 for a coord token; for digits 0 is the
            hundreds, 1 the tens, 2 the ones.
        box_rows_M4: ``[M, 4]`` int64, rows of ``head.coord_logits_NK`` of x1, y1, x2, y2 of each box; ``[M, 12]`` of
            digits.
        boxes_norm_xyxy_M4: ``[M, 4]`` float32 ground-truth boxes, not quantised.
        box_image_M: ``[M]`` int64, which image of the batch each box belongs to, from 0.
        box_object_M: ``[M]`` int64, which object of its image's target each box is, from 0.
    """

    head: HeadOutput
    is_coord_T: Tensor
    coord_bins_N: Tensor
    coord_places_N: Tensor
    box_rows_M4: Tensor
    boxes_norm_xyxy_M4: Tensor
    box_image_M: Tensor
    box_object_M: Tensor

    def expected_boxes(self) -> Tensor:
        """Return ``[M, 4]`` float32 boxes decoded by expectation, corners as decoded.

        Not kept: a node that terms share would add their gradients before the softmax, and round them differently.
        """
        return expected_values(self.head.coord_logits_NK)[self.box_rows_M4]


class Term(BaseModel, ABC):
    """A loss term. A subclass in a file ``coordexp/losses/terms/NAME.py`` is all that a new one takes.

    The fields of the subclass are its knobs: each has a default, is checked when a configuration sets it below
    ``objective.extra.NAME``, and stands with its description in ``docs/LOSSES.md``.

    Attributes:
        name: in configurations and logs; also the name of the file.
        unit: the sum is divided by the number of these in the whole optimizer step.
        formula: the sum in one line, for ``docs/LOSSES.md``.
        sees_coordinates: whether it has a gradient where a coordinate is due; None: as its unit says. A term per
            token or text token says it itself. A run needs one of positive weight that does.
        reads: which numbers it can read; a configuration that writes the others refuses it.
        metric: what its mean is logged as, ``train_`` or ``eval_`` before it (:func:`coordexp.metrics.loss_metric`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)

    name: ClassVar[str]
    unit: ClassVar[Unit]
    formula: ClassVar[str]
    sees_coordinates: ClassVar[bool | None] = None
    reads: ClassVar[Reads] = "bins"
    metric: ClassVar[str] = "extra/{name}"

    @classmethod
    def metric_name(cls) -> str:
        return cls.metric.format(name=cls.name)

    @classmethod
    def supervises_coordinates(cls) -> bool:
        return cls.unit in ("coord_tokens", "boxes") if cls.sees_coordinates is None else cls.sees_coordinates

    @abstractmethod
    def total(self, inputs: TermInputs) -> Tensor:
        """Return the sum of the term over its units in one batch: a float scalar, nothing read from the device."""

    def __call__(self, inputs: TermInputs) -> Tensor:
        """Return :meth:`total`; raises ConfigError if that is no float scalar."""
        value = self.total(inputs)
        if not isinstance(value, Tensor) or value.ndim != 0 or not value.is_floating_point():
            raise self._wrong(value, "a float scalar: its sum over the batch")
        return value

    def _wrong(self, value: object, expected: str) -> ConfigError:
        shown = f"{type(value).__name__} {value!r:.60}"
        if isinstance(value, Tensor):
            shown = f"a {value.dtype} tensor of shape {tuple(value.shape)}"
        return ConfigError(f"loss term {self.name!r} ({type(self).__module__}) returned {shown}, expected {expected}")


class TokenTerm(Term):
    """A term with a value at every supervised token.

    The criterion adds such terms up token by token before it sums, so that text and coord cross-entropy together
    are ``F.cross_entropy`` to the last bit.
    """

    unit = "tokens"

    @abstractmethod
    def per_token(self, inputs: TermInputs) -> Tensor:
        """Return the value at every supervised token, float ``[T]``."""

    def values(self, inputs: TermInputs) -> Tensor:
        """Return :meth:`per_token`; raises ConfigError if that is no float tensor ``[T]``."""
        values_T, shape = self.per_token(inputs), inputs.is_coord_T.shape
        if not isinstance(values_T, Tensor) or values_T.shape != shape or not values_T.is_floating_point():
            raise self._wrong(values_T, f"a float tensor of shape {tuple(shape)}: one value for each token")
        return values_T

    def total(self, inputs: TermInputs) -> Tensor:
        return self.values(inputs).sum()


class SoftTargetTerm(Term):
    """A term whose target is a Gaussian around the true bin."""

    unit = "coord_tokens"

    sigma: float = Field(default=2.0, gt=0, description="standard deviation of the target, in bins")
    truncate: int | None = Field(default=16, ge=1, description="radius in bins beyond which it is 0; null: no limit")
    temperature: float = Field(default=1.0, gt=0, description="divides the logits before their softmax")

    def targets(self, inputs: TermInputs) -> Tensor:
        """Return ``[N, K]`` soft targets around the true bins."""
        return gaussian_soft_targets(inputs.coord_bins_N, sigma=self.sigma, truncate=self.truncate)
