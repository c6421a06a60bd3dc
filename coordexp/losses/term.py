"""What a loss term is: a frozen object with knobs, and a method that gives its sum over one batch.

Shapes: T supervised tokens, N coord tokens, K bins, M boxes, U units.
"""

# A term may be the user's own code, so its result is checked although it is annotated as a Tensor.
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
"""What the sum of a term is divided by; ``tokens`` are all supervised tokens, text and coord."""

UNITS: tuple[Unit, ...] = get_args(Unit)
"""The order of every vector of unit counts, ``[U]``."""

Reads = Literal["bins", "digits", "any"]
"""Which distributions a term can read: over the 1000 bins at a coord token, over the ten digits at a digit of the text
arm, or either."""


@dataclass(frozen=True)
class TermInputs:
    """One batch as the terms see it.

    In the text arm a coordinate is three digits. Each digit is then a coord position, and counts as one of the
    ``coord_tokens``.

    Attributes:
        head: what the terms need of the logits at supervised positions.
        is_coord_T: ``[T]`` bool, whether the true token carries a coordinate. A digit in a description does not.
        coord_bins_N: ``[N]`` int64 true bins, or true digits.
        coord_places_N: ``[N]`` int64 place of each token within its coordinate: 0 for a coord token; for digits 0 is
            the hundreds, 1 the tens, 2 the ones.
        box_rows_M4: ``[M, 4]`` int64, for x1, y1, x2, y2 of each box the row of ``head.coord_logits_NK``; ``[M, 12]``
            for digits.
        boxes_norm_xyxy_M4: ``[M, 4]`` float32 ground-truth boxes as fractions of the image, not quantised.
        box_image_M: ``[M]`` int64, index in the batch of the image that each box belongs to.
        box_object_M: ``[M]`` int64, index of each box among the objects of its image's target.
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
        """Return ``[M, 4]`` float32 boxes decoded by expectation; their corners may be out of order.

        Not cached. If terms shared one softmax node, autograd would add their gradients before that node instead of
        behind it, and the sum would round differently from group to group.
        """
        return expected_values(self.head.coord_logits_NK)[self.box_rows_M4]


class Term(BaseModel, ABC):
    """A loss term. To add one, write a subclass in a file ``coordexp/losses/terms/NAME.py``; nothing else changes.

    The fields of the subclass are its knobs. Each has a default, is checked when a configuration sets it below
    ``objective.extra.NAME``, and is listed with its description in ``docs/LOSSES.md``.

    Attributes:
        name: its name in configurations and logs, and that of its file.
        unit: the sum is divided by the number of these units in the whole optimizer step.
        formula: the sum in one line, for ``docs/LOSSES.md``.
        sees_coordinates: whether the term has a gradient where a coordinate is due. None derives it from the unit:
            terms per coord token or box do. Each run needs such a term of positive weight.
        reads: which distributions it can read. A configuration that writes coordinates the other way refuses the term.
        metric: name of its mean in the log, without ``train_`` or ``eval_`` (:func:`coordexp.metrics.loss_metric`).
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
        """Return the name that its mean is logged as, without the prefix of the split."""
        return cls.metric.format(name=cls.name)

    @classmethod
    def supervises_coordinates(cls) -> bool:
        """Return whether the term has a gradient where a coordinate is due."""
        if cls.sees_coordinates is not None:
            return cls.sees_coordinates
        return cls.unit in ("coord_tokens", "boxes")

    @abstractmethod
    def total(self, inputs: TermInputs) -> Tensor:
        """Return the sum of the term over its units in one batch, a float scalar.

        Read nothing back from the device (``.item()``, ``if tensor:``): the host would wait at each microbatch.
        """

    def __call__(self, inputs: TermInputs) -> Tensor:
        """Return :meth:`total`.

        Raises:
            ConfigError: if the term returned anything but a float scalar.
        """
        value = self.total(inputs)
        if not isinstance(value, Tensor) or value.ndim != 0 or not value.is_floating_point():
            raise self._wrong_result(value, "a float scalar: its sum over the batch")
        return value

    def _wrong_result(self, value: object, expected: str) -> ConfigError:
        if isinstance(value, Tensor):
            got = f"a {value.dtype} tensor of shape {tuple(value.shape)}"
        else:
            got = f"{type(value).__name__} {value!r:.60}"
        return ConfigError(f"loss term {self.name!r} ({type(self).__module__}) returned {got}, expected {expected}")


class TokenTerm(Term):
    """A term with a value at every supervised token.

    The criterion adds these terms token by token and sums over tokens afterwards, so that text and coord cross-entropy
    together equal ``F.cross_entropy`` bit for bit.
    """

    unit = "tokens"

    @abstractmethod
    def per_token(self, inputs: TermInputs) -> Tensor:
        """Return the value at every supervised token, float ``[T]``."""

    def values(self, inputs: TermInputs) -> Tensor:
        """Return :meth:`per_token`.

        Raises:
            ConfigError: if the term returned anything but a float tensor ``[T]``. A scalar would be broadcast, and so
                be added to every token.
        """
        values_T = self.per_token(inputs)
        shape = inputs.is_coord_T.shape
        if not isinstance(values_T, Tensor) or values_T.shape != shape or not values_T.is_floating_point():
            raise self._wrong_result(values_T, f"a float tensor of shape {tuple(shape)}: one value for each token")
        return values_T

    def total(self, inputs: TermInputs) -> Tensor:
        """Return the sum of the values."""
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
