"""What the statistics of a comparison say, as frozen objects: written by this package, read by the report.

A difference ``(a, b)`` is always ``a - b``. Intervals are two-sided 95 %. ``None`` stands for what
is undefined: an AP without ground truth, an interval that cannot be computed.
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
        """Return it with its ends where the measure itself can be; draws may be spread beyond."""
        low, high = (None if end is None else min(max(end, lowest), highest) for end in (self.low, self.high))
        return Estimate(self.value, low, high)

    def of_precision(self) -> "Estimate":
        """Return it with its ends between 0 and 1, where an average precision lies."""
        return self.within(0.0, 1.0)

    def of_difference(self) -> "Estimate":
        """Return it with its ends between -1 and 1, where a difference of two average precisions lies."""
        return self.within(-1.0, 1.0)

    def reversed(self) -> "Estimate":
        """Return second minus first, of a difference."""
        low, high = (None if end is None else 0.0 - end for end in (self.high, self.low))
        return Estimate(0.0 - self.value, low, high)  # 0 stays 0, and does not become -0


@dataclass(frozen=True)
class PairResult:
    """Group ``a`` against group ``b`` on the same images; every p is two-sided."""

    a: str
    b: str
    difference: Estimate  # metric of a minus metric of b, means over seeds: those both groups have, if there are any
    p_swap: float  # of the per-image swap randomisation test: about these checkpoints
    p_holm: float  # the larger of p_swap and p_bootstrap after Holm's correction over all pairs
    image_std: float  # standard deviation of the difference by the choice of images
    seed_std: float | None  # the same by the choice of seeds, so that the squares of both add up; None with one seed
    detectable: float | None  # smallest difference this design finds with 80 % power at the 5 % level
    p_bootstrap: float | None = None  # seeds included, if several; below 5 % exactly where the interval leaves 0 out
    num_seeds: int = 1  # that the difference is a mean over; the smaller number where groups differ
    paired_by_seed: bool = True  # whether both groups were trained with these seeds
    own_std: float | None = None  # the part of seed_std that more images would make smaller; None with one seed

    @property
    def significant(self) -> bool:
        """Whether the difference is significant at the 5 % level, corrected for the number of pairs."""
        return self.p_holm < 0.05

    def reversed(self) -> "PairResult":
        return replace(self, a=self.b, b=self.a, difference=self.difference.reversed())


@dataclass(frozen=True)
class Comparison:
    """All groups of an experiment on one metric."""

    metric: str
    groups: tuple[str, ...]  # in the experiment's order
    seeds: Mapping[str, tuple[int, ...]]
    num_images: int
    resamples: int
    value: Mapping[str, Estimate]  # mean over seeds
    value_by_seed: Mapping[str, Mapping[int, Estimate]]
    pairs: tuple[PairResult, ...]  # every pair of groups, the earlier one first
    seed: int = 0  # of the resamples: with it and the files, every number here can be computed again
    images_a_category: float | None = None  # in how many images (or units) a category is, harmonic mean
    num_units: int | None = None  # that were drawn and swapped; None where images were

    @property
    def drawn_units(self) -> int | None:
        """The number of units that were drawn; None where each is one image, which is as if images were."""
        return None if self.num_units == self.num_images else self.num_units


@dataclass(frozen=True)
class PairParts:
    """How two groups differ in each measure of a :class:`Decomposition`, ``a - b``."""

    a: str
    b: str
    difference: Mapping[str, Estimate]

    def reversed(self) -> "PairParts":
        return PairParts(self.b, self.a, {name: found.reversed() for name, found in self.difference.items()})


@dataclass(frozen=True)
class Decomposition:
    """Where groups lose AP50, and how they differ in it; measures by name, undefined ones absent."""

    value: Mapping[str, Mapping[str, Estimate]]  # group -> measure -> mean over seeds
    pairs: tuple[PairParts, ...]  # every pair of groups, the earlier one first
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
        low, high = (None if end is None else -end for end in (self.high, self.low))
        return Difference(value=-self.value, low=low, high=high, p=self.p)


@dataclass(frozen=True)
class BootstrapReport:
    """Groups of one file each: metric and its interval by group, and ``(a, b)`` -> ``a - b``, pairs in both orders."""

    ap: Mapping[str, float]
    interval: Mapping[str, tuple[float | None, float | None]]
    difference: Mapping[tuple[str, str], Difference]


@dataclass(frozen=True)
class CurvePoint:
    """A group's metric on the subset at one step, mean over seeds, with what it had been trained on by then."""

    step: int
    num_images: float | None
    num_supervised_tokens: float | None
    metric: Estimate


@dataclass(frozen=True)
class CurvePair:
    """How two groups differ in how fast they get better, ``a - b``."""

    a: str
    b: str
    area: Estimate | None  # of mean heights; None where groups share no step
    steps_to: Mapping[float, Estimate]  # fraction -> difference of steps; absent where one never gets there

    def reversed(self) -> "CurvePair":
        steps = {fraction: found.reversed() for fraction, found in self.steps_to.items()}
        return CurvePair(self.b, self.a, self.area and self.area.reversed(), steps)


@dataclass(frozen=True)
class Convergence:
    """How fast groups get better."""

    curves: Mapping[str, tuple[CurvePoint, ...]]
    area: Mapping[str, Estimate]  # mean height of the curve over the steps all groups share
    steps_to: Mapping[float, Mapping[str, Estimate | None]]
    """Fraction (.5, .75, .9) of the best group's final metric -> group -> steps; None if never reached. The curve is a
    straight line between points. An interval without upper end is open: in more than one resample in forty the group
    never gets there."""
    pairs: tuple[CurvePair, ...]  # every pair of groups, the earlier one first


_COMPARISON = TypeAdapter(Comparison)


def to_json(comparison: Comparison) -> str:
    """Return a comparison as JSON; :func:`from_json` gives an equal one back."""
    return _COMPARISON.dump_json(comparison, indent=1).decode()


def from_json(text: str | bytes) -> Comparison:
    """Read what :func:`to_json` wrote, or raise a DataError that names the first entry that is wrong."""
    try:
        return _COMPARISON.validate_json(text)
    except ValidationError as error:
        raise DataError(f"not a stored comparison: {first_problem(error)}") from None
