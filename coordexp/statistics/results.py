"""What the statistics of a comparison say, as frozen objects: written by this package, read by the report.

A difference ``(a, b)`` is always ``a - b``, and every p is two-sided. Intervals are two-sided 95 %. ``None`` stands for
what is undefined: an AP without ground truth, an interval that cannot be computed.

The fields of :class:`Comparison` and of what it holds are the keys of files that runs have left (:func:`to_json`), so
they keep their names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import TypeAdapter, ValidationError

from coordexp.errors import DataError
from coordexp.files import first_problem


@dataclass(frozen=True)
class Estimate:
    """A value, computed on the data as they are, with the ends of its interval."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval, and 0 is not in it."""
        return self.low is not None and self.high is not None and self.low * self.high > 0

    def within(self, lowest: float, highest: float) -> "Estimate":
        """Return the estimate with its ends cut to where the measure itself can lie; draws may spread beyond."""
        low = None if self.low is None else min(max(self.low, lowest), highest)
        high = None if self.high is None else min(max(self.high, lowest), highest)
        return Estimate(self.value, low, high)

    def of_precision(self) -> "Estimate":
        """Return the estimate with its ends between 0 and 1, where an average precision lies."""
        return self.within(0.0, 1.0)

    def of_difference(self) -> "Estimate":
        """Return the estimate with its ends between -1 and 1, where a difference of two average precisions lies."""
        return self.within(-1.0, 1.0)

    def reversed(self) -> "Estimate":
        """Return the estimate of a difference the other way round: second minus first."""
        # "0.0 - x" rather than "-x": 0 stays 0, and is not printed as -0.
        low = None if self.high is None else 0.0 - self.high
        high = None if self.low is None else 0.0 - self.low
        return Estimate(0.0 - self.value, low, high)


@dataclass(frozen=True)
class PairResult:
    """Group ``a`` against group ``b`` on the same images.

    Attributes:
        a: a group.
        b: another group.
        difference: metric of a minus metric of b, means over seeds: those that both groups have, if there are any.
        p_swap: of the per-image swap randomisation test; it is about these checkpoints.
        p_holm: the larger of ``p_swap`` and ``p_bootstrap`` after Holm's correction over all pairs.
        image_std: standard deviation of the difference by the choice of images.
        seed_std: the same by the choice of seeds; the squares of both add up. None with one seed.
        detectable: smallest difference that this design finds with 80 % power at the 5 % level.
        p_bootstrap: with the uncertainty of several seeds; below 5 % exactly if the interval leaves 0 out.
        num_seeds: that the difference is a mean over; the smaller number if groups differ.
        paired_by_seed: whether both groups were trained with these seeds.
        own_std: the part of ``seed_std`` that more images would make smaller; None with one seed.
    """

    a: str
    b: str
    difference: Estimate
    p_swap: float
    p_holm: float
    image_std: float
    seed_std: float | None
    detectable: float | None
    p_bootstrap: float | None = None
    num_seeds: int = 1
    paired_by_seed: bool = True
    own_std: float | None = None

    @property
    def significant(self) -> bool:
        """Whether the difference is significant at the 5 % level, corrected for the number of pairs."""
        return self.p_holm < 0.05

    def reversed(self) -> "PairResult":
        return replace(self, a=self.b, b=self.a, difference=self.difference.reversed())


@dataclass(frozen=True)
class Comparison:
    """All groups of an experiment on one metric.

    Attributes:
        metric: such as AP.
        groups: in the experiment's order.
        seeds: group -> training seeds.
        num_images: that were compared.
        resamples: of the bootstrap.
        value: group -> mean over seeds.
        value_by_seed: group -> training seed -> value.
        pairs: every pair of groups, the earlier group first.
        seed: of the resamples; with it and the files, every number here can be computed again.
        images_a_category: in how many images (or units) a category is, harmonic mean.
        num_units: how many units were drawn and swapped; None if images were.
    """

    metric: str
    groups: tuple[str, ...]
    seeds: Mapping[str, tuple[int, ...]]
    num_images: int
    resamples: int
    value: Mapping[str, Estimate]
    value_by_seed: Mapping[str, Mapping[int, Estimate]]
    pairs: tuple[PairResult, ...]
    seed: int = 0
    images_a_category: float | None = None
    num_units: int | None = None

    @property
    def drawn_units(self) -> int | None:
        """The number of units that were drawn; None if each is one image, which is the same as drawing images."""
        return None if self.num_units == self.num_images else self.num_units


@dataclass(frozen=True)
class PairParts:
    """How two groups differ in each measure of a :class:`Decomposition`, ``a - b``."""

    a: str
    b: str
    difference: Mapping[str, Estimate]

    def reversed(self) -> "PairParts":
        return PairParts(self.b, self.a, {name: estimate.reversed() for name, estimate in self.difference.items()})


@dataclass(frozen=True)
class Decomposition:
    """Where groups lose AP50, and how they differ in it; undefined measures are absent.

    Attributes:
        value: group -> name of the measure -> mean over seeds.
        pairs: every pair of groups, the earlier group first.
        resamples: how many.
        seed: of the resamples.
    """

    value: Mapping[str, Mapping[str, Estimate]]
    pairs: tuple[PairParts, ...]
    resamples: int
    seed: int = 0


@dataclass(frozen=True)
class Difference:
    """First minus second with its interval, and the two-sided p-value that belongs to it."""

    value: float
    low: float | None
    high: float | None
    p: float

    def reversed(self) -> "Difference":
        low = None if self.high is None else -self.high
        high = None if self.low is None else -self.low
        return Difference(value=-self.value, low=low, high=high, p=self.p)


@dataclass(frozen=True)
class BootstrapReport:
    """Groups of one file each.

    Attributes:
        ap: group -> the metric.
        interval: group -> the ends of its interval.
        difference: ``(a, b)`` -> ``a - b``, every pair in both orders.
    """

    ap: Mapping[str, float]
    interval: Mapping[str, tuple[float | None, float | None]]
    difference: Mapping[tuple[str, str], Difference]


@dataclass(frozen=True)
class CurvePoint:
    """A group's metric on the subset at one step, mean over seeds, and how much it had been trained on by then."""

    step: int
    num_images: float | None
    num_supervised_tokens: float | None
    metric: Estimate


@dataclass(frozen=True)
class CurvePair:
    """How two groups differ in how fast they get better, ``a - b``.

    Attributes:
        a: a group.
        b: another group.
        area: difference of the mean heights of their curves; None if the groups share no step.
        steps_to: fraction -> difference of steps; absent if one of the two never gets there.
    """

    a: str
    b: str
    area: Estimate | None
    steps_to: Mapping[float, Estimate]

    def reversed(self) -> "CurvePair":
        area = None if self.area is None else self.area.reversed()
        steps_to = {fraction: estimate.reversed() for fraction, estimate in self.steps_to.items()}
        return CurvePair(self.b, self.a, area, steps_to)


@dataclass(frozen=True)
class Convergence:
    """How fast groups get better.

    Attributes:
        curves: group -> its points by step; between two points the curve is a straight line.
        area: group -> mean height of its curve over the steps that all groups share.
        steps_to: fraction (.5, .75, .9) of the best group's final metric -> group -> steps; None if never reached. An
            interval without upper end is open: in more than one resample in forty the group never gets there.
        pairs: every pair of groups, the earlier group first.
    """

    curves: Mapping[str, tuple[CurvePoint, ...]]
    area: Mapping[str, Estimate]
    steps_to: Mapping[float, Mapping[str, Estimate | None]]
    pairs: tuple[CurvePair, ...]


_COMPARISON = TypeAdapter(Comparison)


def to_json(comparison: Comparison) -> str:
    """Return a comparison as JSON; :func:`from_json` gives an equal one back."""
    return _COMPARISON.dump_json(comparison, indent=1).decode()


def from_json(text: str | bytes) -> Comparison:
    """Read what :func:`to_json` wrote.

    Raises:
        DataError: naming the first entry that is wrong.
    """
    try:
        return _COMPARISON.validate_json(text)
    except ValidationError as error:
        raise DataError(f"not a stored comparison: {first_problem(error)}") from None
