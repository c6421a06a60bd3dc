"""How fast groups get better: AP over steps on a fixed subset of images, with paired intervals.

Between two evaluations a curve is a straight line. The number of steps to a goal has no standard error, since "never"
is one of its values: its interval is the middle 95 % of its draws, in which seeds are drawn as well as images.

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
    """A group's AP."""

    seeds: tuple[int, ...]
    steps: Floats  # [P] ascending, those all of its seeds have
    values: Floats  # [S, P]
    draws: Floats  # [R, S, P]
    num_units: int | None = None  # that were drawn; see Drawn

    def point(self, index: int) -> dict[int, Drawn]:
        """Return training seed -> metric at one point."""
        return {
            seed: Drawn(self.values[s, index], self.draws[:, s, index], self.num_units)
            for s, seed in enumerate(self.seeds)
        }

    def area(self, steps: Floats) -> dict[int, Drawn]:
        """Return training seed -> mean height over some of the steps."""
        chosen = np.isin(self.steps, steps)
        values, draws = _mean_height(steps, self.values[:, chosen]), _mean_height(steps, self.draws[..., chosen])
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

    Arguments and errors are those of :func:`coordexp.statistics.comparison.compare`, but ``detections`` are group ->
    training seed -> step -> file, and ``image_ids`` the subset evaluated during training. ``num_images`` and
    ``num_supervised_tokens`` were seen by each step, to show curves at equal ones; None where unknown.

    Returns:
        Curves, areas and steps. A step that only some seeds of a group have is left out. Areas are
        empty if the groups have no step in common; if the seeds of one have none, that is a ComparisonError.
    """
    check_groups(detections)
    check_plan(resamples=resamples, seed=seed)
    shared = dict[str, list[int]]()
    for group, seeds in detections.items():
        shared[group] = sorted(set.intersection(*(set(found) for found in seeds.values())))
        if not shared[group]:
            raise ComparisonError(f"group {group!r} has no step at which all its seeds {sorted(seeds)} were evaluated")
    files = {
        (group, number, step): detections[group][number][step]
        for group, steps in shared.items()
        for number in sorted(detections[group])
        for step in steps
    }
    matches = read_matches(annotations_json, files, metric="AP", image_ids=image_ids, on_progress=on_progress)
    numbered = numbered_units(annotations_json, units, image_ids)
    runs = resampled(matches, "AP", resamples=resamples, seed=seed, units=numbered, on_progress=on_progress)
    drawn = list(runs.values())
    values, draws = np.array([run.value for run in drawn]), np.stack([run.draws for run in drawn], axis=1)
    curves, column = dict[str, _Curve](), 0
    for group, steps in shared.items():
        seeds, first = tuple(sorted(detections[group])), column
        column += len(seeds) * len(steps)
        curves[group] = _Curve(
            seeds=seeds,
            steps=np.array(steps, np.float64),
            values=values[first:column].reshape(len(seeds), len(steps)),
            draws=draws[:, first:column].reshape(resamples, len(seeds), len(steps)),
            num_units=drawn[0].num_units,
        )
    return _describe(curves, num_images=num_images, num_supervised_tokens=num_supervised_tokens, seed=seed)


def _describe(
    curves: Mapping[str, _Curve], *, num_images: PerStep | None, num_supervised_tokens: PerStep | None, seed: int
) -> Convergence:
    shared = np.array(sorted(set.intersection(*(set(curve.steps.tolist()) for curve in curves.values()))))
    areas = {group: curve.area(shared) for group, curve in curves.items()} if len(shared) else {}
    steps_to, differences = _all_steps_to(curves, seed=seed)
    return Convergence(
        curves={
            group: tuple(
                CurvePoint(
                    step=int(step),
                    num_images=(num_images or {}).get(group, {}).get(int(step)),
                    num_supervised_tokens=(num_supervised_tokens or {}).get(group, {}).get(int(step)),
                    metric=group_total(curve.point(i)).estimate.of_precision(),
                )
                for i, step in enumerate(curve.steps)
            )
            for group, curve in curves.items()
        },
        area={group: group_total(area).estimate.of_precision() for group, area in areas.items()},
        steps_to=steps_to,
        pairs=tuple(
            CurvePair(
                a,
                b,
                difference_total(areas[a], areas[b]).estimate.of_difference() if areas else None,
                differences[a, b],
            )
            for a, b in combinations(curves, 2)
        ),
    )


def _all_steps_to(
    curves: Mapping[str, _Curve], *, seed: int
) -> tuple[dict[float, dict[str, Estimate | None]], dict[tuple[str, str], dict[float, Estimate]]]:
    """The goal is a share of the best group's last value; in a resample, of the same group's there."""
    values = {group: curve.values.mean(axis=0)[None] for group, curve in curves.items()}
    draws = {group: _curve_draws(curve, seed=seed) for group, curve in curves.items()}
    best = max(curves, key=lambda group: float(values[group][0, -1]))
    reached: dict[float, dict[str, Estimate | None]] = {}
    differences: dict[tuple[str, str], dict[float, Estimate]] = {pair: {} for pair in combinations(curves, 2)}
    for fraction in FRACTIONS:
        goal, goals = fraction * values[best][:, -1], fraction * draws[best][:, -1]
        at = {group: float(steps_to(curve.steps, values[group], goal)[0]) for group, curve in curves.items()}
        spread = {group: steps_to(curve.steps, draws[group], goals) for group, curve in curves.items()}
        reached[fraction] = {g: _middle(at[g], spread[g]) if np.isfinite(at[g]) else None for g in curves}
        for (a, b), found in differences.items():
            if np.isfinite(at[a]) and np.isfinite(at[b]):
                found[fraction] = _middle(at[a] - at[b], _minus(spread[a], spread[b]))
    return reached, differences


def _curve_draws(curve: _Curve, *, seed: int) -> Floats:
    """Return ``[R, P]`` curves with images and seeds resampled.

    Seeds are drawn with replacement, their spread scaled by ``sqrt(S / (S - 1))``, which it lacks, and all of it by the
    factor that the interval of the area has for few seeds. The spread by units lacks ``sqrt(U / (U - 1))``, and has the
    factor of few units.
    """
    mean, over_seeds, num_seeds = curve.values.mean(axis=0), curve.draws.mean(axis=1), len(curve.seeds)
    if num_seeds == 1 and curve.num_units is None:
        return over_seeds
    stretch = group_total(curve.area(curve.steps)).factor / NORMAL_975
    of_images = over_seeds
    if curve.num_units is not None:
        of_images = mean + math.sqrt(missing_variance(curve.num_units)) * (over_seeds - mean)
    if num_seeds == 1:
        return mean + stretch * (of_images - mean)
    picks = generator(Stream.SEEDS, seed=seed, index=0).integers(0, num_seeds, curve.draws.shape[:2])
    picked = curve.draws[np.arange(len(picks))[:, None], picks].mean(axis=1)
    return mean + stretch * (of_images + math.sqrt(num_seeds / (num_seeds - 1)) * (picked - over_seeds) - mean)


def _middle(value: float, draws: Floats) -> Estimate:
    """Return a value with the 2.5 and 97.5 % quantiles of its draws; an end that is "never" is open.

    Without ends where more than one draw in twenty is undefined.
    """
    defined = np.sort(draws[~np.isnan(draws)])
    if len(defined) < 0.95 * len(draws):
        return Estimate(value)
    low, high = (float(defined[math.ceil(share * len(defined)) - 1]) for share in (0.025, 0.975))
    return Estimate(value, low if math.isfinite(low) else None, high if math.isfinite(high) else None)


def steps_to(steps: Floats, curves: Floats, goals: Floats) -> Floats:
    """Return where curves ``[R, P]`` over ascending steps ``[P]`` first reach their goals ``[R]``, as ``[R]`` steps.

    Between points curves are straight lines. ``inf`` where one never gets there, NaN where there is no goal, because it
    is not above 0.
    """
    above = curves >= goals[:, None]
    after = above.argmax(axis=1)
    rows, before = np.arange(len(curves)), np.maximum(after - 1, 0)
    low, high = curves[rows, before], curves[rows, after]
    rise = np.where(after > before, high - low, 1.0)
    share = np.where(after > before, (goals - low) / np.where(rise > 0, rise, 1.0), 0.0)
    found = steps[before] + share * (steps[after] - steps[before])
    found = np.where(above.any(axis=1), found, np.inf)
    return np.where(goals > 0, found, np.nan)


def _minus(a: Floats, b: Floats) -> Floats:
    both = np.isinf(a) & np.isinf(b)
    return np.where(both, np.nan, np.where(both, 0.0, a) - np.where(both, 0.0, b))


def _mean_height(steps: Floats, curves: Floats) -> Floats:
    """Return the mean of curves ``[..., P]`` over the steps, by the trapezoid rule."""
    if len(steps) == 1:
        return curves[..., 0]
    return np.trapezoid(curves, steps, axis=-1) / (steps[-1] - steps[0])
