"""Statistics -> tables as text: groups with intervals, pairs, convergence."""

from collections.abc import Sequence
from statistics import fmean

from coordexp.metrics import AP_NAMES, MetricName
from coordexp.report.study.data import ExperimentData, RunData
from coordexp.report.study.study import Study
from coordexp.report.text.tables import UNDEFINED, Table, TableRow
from coordexp.statistics.results import Comparison, Convergence, Estimate, PairResult

MINUS = "\u2212"


def study_tables(study: Study) -> list[Table]:
    """Return the tables with intervals, as far as there are any."""
    found: list[Table] = []
    if study.comparison is not None:
        found.append(_groups(study.data, study.comparison))
        if study.comparison.pairs:
            found.append(_pairs(study.comparison))
    return found + convergence_tables(study)


def convergence_tables(study: Study) -> list[Table]:
    """Return how fast groups learn, and by how much they differ in it."""
    if study.convergence is None:
        return []
    found = [_convergence(study.convergence)]
    if study.convergence.area_difference:
        found.append(_convergence_pairs(study.convergence))
    return found


def pair_name(pair: PairResult) -> str:
    """Return ``C − A``: the first minus the second."""
    return f"{pair.a} {MINUS} {pair.b}"


def interval(estimate: Estimate | None, *, signed: bool = False, digits: int = 3) -> str:
    """Return ``[0.011, 0.098]``, or a dash where there is no interval."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return UNDEFINED
    low, high = (written(end, signed=signed, digits=digits) for end in (estimate.low, estimate.high))
    return f"[{low}, {high}]"


def written(value: float | None, *, signed: bool = False, digits: int = 3) -> str:
    """Return a number with a true minus sign, a plus sign if asked, or a dash."""
    if value is None:
        return UNDEFINED
    return f"{value:{'+' if signed else ''}.{digits}f}".replace("-", MINUS)


def p_value(p: float) -> str:
    """Return a p-value as people write it."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def verdict_of(pair: PairResult) -> str:
    """Return in a word what a pair's test says; with one seed it is about checkpoints."""
    if not pair.significant:
        return "not told apart"
    better = pair.a if pair.difference.value > 0 else pair.b
    return f"{better} is better" if pair.seed_std is not None else f"{better} is higher"


def _groups(data: ExperimentData, comparison: Comparison) -> Table:
    others = [str(MetricName("constrained", name, "expected")) for name in AP_NAMES if name != comparison.metric]
    rows = [
        TableRow(
            (
                group,
                ", ".join(map(str, comparison.seeds[group])),
                written(comparison.value[group].value),
                interval(comparison.value[group]),
                *(written(_mean(data.groups.get(group, []), comparison.seeds[group], name)) for name in others),
            )
        )
        for group in comparison.groups
    ]
    heads = [name for name in AP_NAMES if name != comparison.metric]
    title = f"{comparison.metric} of expected boxes, constrained decoding, {comparison.num_images} images"
    return Table(title, ("group", "seeds", comparison.metric, "95 % interval", *heads), tuple(rows))


def _pairs(comparison: Comparison) -> Table:
    rows = [
        TableRow(
            (
                pair_name(pair),
                written(pair.difference.value, signed=True),
                interval(pair.difference, signed=True),
                p_value(pair.p_swap),
                UNDEFINED if pair.p_bootstrap is None else p_value(pair.p_bootstrap),
                p_value(pair.p_holm),
                written(pair.detectable),
                written(pair.image_std, digits=4),
                written(pair.seed_std, digits=4),
                verdict_of(pair),
            )
        )
        for pair in comparison.pairs
    ]
    heads = (
        "pair", "difference", "95 % interval", "p swaps", "p boot", "p Holm", "detectable", "std images", "std seeds",
        "verdict",
    )  # fmt: skip
    return Table(f"Differences of {comparison.metric} on the same images", heads, tuple(rows))


def _convergence(convergence: Convergence) -> Table:
    fractions = sorted(convergence.steps_to)
    # A share of nothing is no goal.
    known = any(points[-1].metric.value > 0 for points in convergence.curves.values())
    rows = [
        TableRow(
            (
                group,
                written(area.value),
                interval(area),
                *(_steps(convergence.steps_to[fraction].get(group), known=known) for fraction in fractions),
            )
        )
        for group, area in convergence.area.items()
    ]
    heads = ("group", "area", "95 % interval", *(f"steps to {fraction:.0%}" for fraction in fractions))
    return Table(
        "Convergence on the subset: mean height of the AP curve, steps to a part of the best AP", heads, tuple(rows)
    )


def _convergence_pairs(convergence: Convergence) -> Table:
    fractions = sorted(convergence.steps_to)
    rows = [
        TableRow(
            (
                f"{a} {MINUS} {b}",
                written(area.value, signed=True),
                interval(area, signed=True),
                *(_step_difference(convergence.steps_to_difference[f].get((a, b))) for f in fractions),
            )
        )
        for (a, b), area in convergence.area_difference.items()
    ]
    heads = ("pair", "area", "95 % interval", *(f"steps to {fraction:.0%}" for fraction in fractions))
    return Table("Differences of convergence on the same images; fewer steps are better", heads, tuple(rows))


def _step_difference(estimate: Estimate | None) -> str:
    if estimate is None:
        return UNDEFINED
    ends = ("open" if end is None else written(end, signed=True, digits=0) for end in (estimate.low, estimate.high))
    return f"{written(estimate.value, signed=True, digits=0)} [{', '.join(ends)}]"


def _steps(estimate: Estimate | None, *, known: bool) -> str:
    if estimate is None:
        return "never" if known else UNDEFINED
    if estimate.low is None:
        return f"{estimate.value:.0f}"
    high = "never" if estimate.high is None else f"{estimate.high:.0f}"
    return f"{estimate.value:.0f} [{estimate.low:.0f}, {high}]"


def _mean(runs: Sequence[RunData], seeds: Sequence[int], name: str) -> float | None:
    values = [run.metrics[name] for run in runs if run.seed in seeds and name in run.metrics]
    return fmean(values) if values else None
