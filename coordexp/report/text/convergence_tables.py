"""How fast groups learn, as tables: mean AP over all steps, and steps to a part of the best AP."""

from coordexp.report.study.study import Study
from coordexp.report.table import Table
from coordexp.report.text.tables import UNDEFINED, pair_name, with_interval, written
from coordexp.statistics.results import CurvePair, Estimate

_GROUPS_TITLE = "Convergence on the subset: mean AP over all steps, and steps to a part of the best AP"
_PAIRS_TITLE = "Differences of convergence on the same images; fewer steps are better"


def convergence_tables(study: Study) -> list[Table]:
    """Return how fast each group learns, and how pairs differ in it; none for runs that were measured at their end."""
    convergence = study.convergence
    if convergence is None:
        return []
    fractions = sorted(convergence.steps_to)
    heads = ("mean AP", "95 % interval", *(f"steps to {100 * fraction:.0f} %" for fraction in fractions))
    # Where no group has any AP at the end, a part of it is no goal.
    has_goal = any(points[-1].metric.value > 0 for points in convergence.curves.values())
    group_rows: list[tuple[str, ...]] = []
    for group, area in convergence.area.items():
        steps = [_steps(convergence.steps_to[fraction].get(group), has_goal=has_goal) for fraction in fractions]
        group_rows.append((group, *with_interval(area), *steps))
    pair_rows: list[tuple[str, ...]] = []
    for pair in convergence.pairs:
        if pair.area is not None:
            differences = [_step_difference(pair, fraction) for fraction in fractions]
            pair_rows.append((pair_name(pair), *with_interval(pair.area, signed=True), *differences))

    tables = [Table.of(_GROUPS_TITLE, ("group", *heads), group_rows)]
    if pair_rows:
        tables.append(Table.of(_PAIRS_TITLE, ("pair", *heads), pair_rows))
    return tables


def _step_difference(pair: CurvePair, fraction: float) -> str:
    estimate = pair.steps_to.get(fraction)
    if estimate is None:
        return UNDEFINED
    low, high = (
        "open" if end is None else written(end, signed=True, digits=0) for end in (estimate.low, estimate.high)
    )
    return f"{written(estimate.value, signed=True, digits=0)} [{low}, {high}]"


def _steps(estimate: Estimate | None, *, has_goal: bool) -> str:
    if estimate is None:
        return "never" if has_goal else UNDEFINED
    if estimate.low is None:
        return f"{estimate.value:.0f}"
    high = "never" if estimate.high is None else f"{estimate.high:.0f}"
    return f"{estimate.value:.0f} [{estimate.low:.0f}, {high}]"
