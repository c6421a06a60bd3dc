"""How fast groups get better: AP over steps on a fixed subset of images, with paired intervals.

Between two evaluations a curve is a straight line. The number of steps to a goal has no standard error, since "never"
is one of its values: its interval is the middle 95 % of its draws, in which seeds are drawn as well as images.

    AP   goal - - - - - x- - - - -        A crosses the goal between two points: a number of steps.
         A  .----*-----/----*             B never does: infinite, "never".
         B  .----*----------*             An area is the mean height of a curve over the steps that all groups share.
            0    step 1     step 2

Legend of shapes: ``R`` resamples, ``S`` seeds, ``P`` points.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from coordexp.data.units import UnitNames
from coordexp.detection.boxes import Floats
from coordexp.errors import ComparisonError
from coordexp.statistics.bootstrap import FilePath, check_groups, numbered_units, read_matches, resampled
from coordexp.statistics.intervals import NORMAL_975, Drawn, difference_total, group_total, missing_variance
from coordexp.statistics.resampling import OnProgress, Stream, check_plan, generator
from coordexp.statistics.results import Convergence, CurvePair, CurvePoint, Estimate

FRACTIONS = (0.5, 0.75, 0.9)

PerStep = Mapping[str, Mapping[int, float]]
"""Group -> step -> a count reached by then, mean over seeds."""


@dataclass(frozen=True)
class _Curve:
    """A group's AP over steps.

    Attributes:
        seeds: ``S`` training seeds.
        steps: ``[P]`` ascending; the steps that all of its seeds have.
        values: ``[S, P]`` on the images as they are.
        draws: ``[R, S, P]`` on resampled images.
        num_units: as of :class:`Drawn`.
    """

    seeds: tuple[int, ...]
    steps: Floats
    values: Floats
    draws: Floats
    num_units: int | None = None

    def point(self, index: int) -> dict[int, Drawn]:
        """Return training seed -> metric at one point."""
        return {
            seed: Drawn(self.values[s, index], self.draws[:, s, index], self.num_units)
            for s, seed in enumerate(self.seeds)
        }

    def area(self, steps: Floats) -> dict[int, Drawn]:
        """Return training seed -> mean height over some of the steps."""
        is_chosen = np.isin(self.steps, steps)
        values = _mean_height(steps, self.values[:, is_chosen])
        draws = _mean_height(steps, self.draws[..., is_chosen])
        return {seed: Drawn(float(values[s]), draws[:, s], self.num_units) for s, seed in enumerate(self.seeds)}


def convergence(
    annotations_json: FilePath,
    detections: Mapping[str, Mapping[int, Mapping[int, FilePath]]],
    image_ids: Collection[int] | None,
    *,
    num_images: PerStep | None = None,
    num_supervised_tokens: PerStep | None = None,
    resamples: int = 1000,
    seed: int = 0,
    units: UnitNames | None = None,
    on_progress: OnProgress | None = None,
) -> Convergence:
    """Compare how fast groups learn, on the same resamples of images (and seeds) for all groups and steps.

    Args:
        annotations_json: ground truth in COCO format.
        detections: group -> training seed -> step -> detections in COCO's results format.
        image_ids: the subset of images that was evaluated during training; None for every image.
        num_images: images that each group had seen by a step, to show curves at equal numbers; None if unknown.
        num_supervised_tokens: supervised tokens likewise.
        resamples: number of resamples.
        seed: of the resamples; the same seed gives the same numbers.
        units: which images are not independent; units are then drawn in the place of images.
        on_progress: called with the number of resamples done and their total.

    Returns:
        Curves, areas and steps. A step that only some seeds of a group have is left out. Areas are empty if the groups
        have no step in common.

    Raises:
        DataError: if a file or an entry is malformed, or an image id is unknown.
        ComparisonError: if there is nothing to compare or to resample, or the seeds of a group have no step in common.
    """
    check_groups(detections)
    check_plan(resamples=resamples, seed=seed)
    steps_of_group = {group: _common_steps(group, seeds) for group, seeds in detections.items()}
    files: dict[tuple[str, int, int], FilePath] = {}
    for group, steps in steps_of_group.items():
        for number in sorted(detections[group]):
            files |= {(group, number, step): detections[group][number][step] for step in steps}
    matches = read_matches(annotations_json, files, metric="AP", image_ids=image_ids, on_progress=on_progress)
    numbered = numbered_units(annotations_json, units, image_ids)
    drawn = resampled(matches, "AP", resamples=resamples, seed=seed, units=numbered, on_progress=on_progress)

    curves: dict[str, _Curve] = {}
    for group, steps in steps_of_group.items():
        numbers = sorted(detections[group])
        points = [drawn[group, number, step] for number in numbers for step in steps]
        curves[group] = _Curve(
            seeds=tuple(numbers),
            steps=np.array(steps, np.float64),
            values=np.array([point.value for point in points]).reshape(len(numbers), len(steps)),
            draws=np.stack([point.draws for point in points], axis=1).reshape(resamples, len(numbers), len(steps)),
            num_units=points[0].num_units,
        )
    return _describe(curves, num_images=num_images or {}, num_supervised_tokens=num_supervised_tokens or {}, seed=seed)


def _common_steps(group: str, seeds: Mapping[int, Mapping[int, FilePath]]) -> list[int]:
    """Return the steps that all seeds of a group have, or raise a ComparisonError if there are none."""
    steps = sorted(set.intersection(*(set(files_of_seed) for files_of_seed in seeds.values())))
    if not steps:
        raise ComparisonError(f"group {group!r} has no step at which all its seeds {sorted(seeds)} were evaluated")
    return steps


def _describe(
    curves: Mapping[str, _Curve], *, num_images: PerStep, num_supervised_tokens: PerStep, seed: int
) -> Convergence:
    """Return what curves say: their points, areas, steps to goals and the differences of all pairs."""
    points: dict[str, tuple[CurvePoint, ...]] = {}
    for group, curve in curves.items():
        points[group] = tuple(
            CurvePoint(
                step=int(step),
                num_images=num_images.get(group, {}).get(int(step)),
                num_supervised_tokens=num_supervised_tokens.get(group, {}).get(int(step)),
                metric=group_total(curve.point(index)).estimate.of_precision(),
            )
            for index, step in enumerate(curve.steps)
        )
    common_steps = np.array(sorted(set.intersection(*(set(curve.steps.tolist()) for curve in curves.values()))))
    areas: dict[str, dict[int, Drawn]] = {}
    if len(common_steps):
        areas = {group: curve.area(common_steps) for group, curve in curves.items()}
    steps_to_goals, differences_of_steps = _all_steps_to(curves, seed=seed)

    pairs: list[CurvePair] = []
    for a, b in combinations(curves, 2):
        difference_of_areas = difference_total(areas[a], areas[b]).estimate.of_difference() if areas else None
        pairs.append(CurvePair(a, b, difference_of_areas, differences_of_steps[a, b]))
    return Convergence(
        curves=points,
        area={group: group_total(area).estimate.of_precision() for group, area in areas.items()},
        steps_to=steps_to_goals,
        pairs=tuple(pairs),
    )


def _all_steps_to(
    curves: Mapping[str, _Curve], *, seed: int
) -> tuple[dict[float, dict[str, Estimate | None]], dict[tuple[str, str], dict[float, Estimate]]]:
    """Return when each group reaches each goal, and how the groups of each pair differ in it.

    A goal is a share of the best group's last value; in a resample, it is a share of what that group has there.

    Returns:
        Fraction -> group -> steps, None if never; pair -> fraction -> difference, absent if one of the two never does.
    """
    values = {group: curve.values.mean(axis=0)[None] for group, curve in curves.items()}
    draws = {group: _curve_draws(curve, seed=seed) for group, curve in curves.items()}
    best = max(curves, key=lambda group: float(values[group][0, -1]))
    reached: dict[float, dict[str, Estimate | None]] = {}
    differences: dict[tuple[str, str], dict[float, Estimate]] = {pair: {} for pair in combinations(curves, 2)}
    for fraction in FRACTIONS:
        goal = fraction * values[best][:, -1]
        goals_of_draws = fraction * draws[best][:, -1]
        steps: dict[str, float] = {}
        steps_of_draws: dict[str, Floats] = {}
        reached[fraction] = {}
        for group, curve in curves.items():
            steps[group] = float(steps_to(curve.steps, values[group], goal)[0])
            steps_of_draws[group] = steps_to(curve.steps, draws[group], goals_of_draws)
            is_reached = np.isfinite(steps[group])
            reached[fraction][group] = _middle(steps[group], steps_of_draws[group]) if is_reached else None
        for (a, b), difference_of_pair in differences.items():
            if np.isfinite(steps[a]) and np.isfinite(steps[b]):
                spread = _minus(steps_of_draws[a], steps_of_draws[b])
                difference_of_pair[fraction] = _middle(steps[a] - steps[b], spread)
    return reached, differences


def _curve_draws(curve: _Curve, *, seed: int) -> Floats:
    """Return ``[R, P]`` curves with images and seeds resampled.

    Seeds are drawn with replacement. Their spread lacks ``sqrt(S / (S - 1))`` and is scaled by it; the spread by units
    lacks ``sqrt(U / (U - 1))``. The sum of both is stretched by the factor that the interval of the area has for few
    seeds or few units.
    """
    num_seeds = len(curve.seeds)
    mean = curve.values.mean(axis=0)
    mean_of_draws = curve.draws.mean(axis=1)
    if num_seeds == 1 and curve.num_units is None:
        return mean_of_draws
    stretch = group_total(curve.area(curve.steps)).factor / NORMAL_975
    by_images = mean_of_draws
    if curve.num_units is not None:
        by_images = mean + math.sqrt(missing_variance(curve.num_units)) * (mean_of_draws - mean)
    if num_seeds == 1:
        return mean + stretch * (by_images - mean)
    picks = generator(Stream.SEEDS, seed=seed, index=0).integers(0, num_seeds, curve.draws.shape[:2])
    mean_of_picks = curve.draws[np.arange(len(picks))[:, None], picks].mean(axis=1)
    by_images_and_seeds = by_images + math.sqrt(num_seeds / (num_seeds - 1)) * (mean_of_picks - mean_of_draws)
    return mean + stretch * (by_images_and_seeds - mean)


def _middle(value: float, draws: Floats) -> Estimate:
    """Return a value with the 2.5 and 97.5 % quantiles of its draws; an end that is "never" is open.

    There are no ends if more than one draw in twenty is undefined.
    """
    defined = np.sort(draws[~np.isnan(draws)])
    if len(defined) < 0.95 * len(draws):
        return Estimate(value)
    low = float(defined[math.ceil(0.025 * len(defined)) - 1])
    high = float(defined[math.ceil(0.975 * len(defined)) - 1])
    return Estimate(value, low if math.isfinite(low) else None, high if math.isfinite(high) else None)


def steps_to(steps: Floats, curves: Floats, goals: Floats) -> Floats:
    """Return where curves first reach their goals; between points they are straight lines.

    Args:
        steps: ``[P]`` ascending.
        curves: ``[R, P]``.
        goals: ``[R]``.

    Returns:
        ``[R]`` steps; ``inf`` for a curve that never reaches its goal, NaN for a goal that is not above 0.
    """
    is_reached = curves >= goals[:, None]
    after = is_reached.argmax(axis=1)  # the first point at or above the goal; 0 if there is none
    before = np.maximum(after - 1, 0)
    rows = np.arange(len(curves))
    low = curves[rows, before]
    high = curves[rows, after]
    is_between = after > before
    rise = np.where(is_between, high - low, 1.0)
    share = np.where(is_between, (goals - low) / np.where(rise > 0, rise, 1.0), 0.0)
    crossing = steps[before] + share * (steps[after] - steps[before])
    crossing = np.where(is_reached.any(axis=1), crossing, np.inf)
    return np.where(goals > 0, crossing, np.nan)


def _minus(a: Floats, b: Floats) -> Floats:
    """Return ``a - b``; "never" minus "never" is not defined."""
    is_never_minus_never = np.isinf(a) & np.isinf(b)
    finite_a = np.where(is_never_minus_never, 0.0, a)
    finite_b = np.where(is_never_minus_never, 0.0, b)
    return np.where(is_never_minus_never, np.nan, finite_a - finite_b)


def _mean_height(steps: Floats, curves: Floats) -> Floats:
    """Return the mean of curves ``[..., P]`` over the steps, by the trapezoid rule."""
    if len(steps) == 1:
        return curves[..., 0]
    return np.trapezoid(curves, steps, axis=-1) / (steps[-1] - steps[0])
