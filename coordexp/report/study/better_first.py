"""A study as people read it: in every pair the group that is higher by the headline stands first."""

from dataclasses import replace
from typing import TypeVar

from coordexp.report.study.study import Study
from coordexp.statistics.results import CurvePair, PairParts, PairResult

_Pair = TypeVar("_Pair", PairResult, PairParts, CurvePair)


def better_first(study: Study) -> Study:
    """Return the study with the better group of each pair first, and the pairs of the best group before the others.

    Which group is better is decided once, by the pair's difference under each group's own reading: a pair has the
    same name in every table, and a negative difference there says that it comes out the other way round. Files for
    programs keep the experiment's order.
    """
    if study.comparison is None:
        return study
    value = {group: -estimate.value for group, estimate in study.comparison.value.items()}
    couples = [(p.a, p.b) if p.difference.value >= 0 else (p.b, p.a) for p in study.comparison.pairs]
    couples.sort(key=lambda couple: (value[couple[0]], value[couple[1]]))

    def ordered(pairs: tuple[_Pair, ...]) -> tuple[_Pair, ...]:
        there = {(pair.b, pair.a): pair.reversed() for pair in pairs} | {(pair.a, pair.b): pair for pair in pairs}
        return tuple(there[couple] for couple in couples if couple in there)

    parts, curves = study.decomposition, study.convergence
    return replace(
        study,
        comparison=replace(study.comparison, pairs=ordered(study.comparison.pairs)),
        readings={name: replace(found, pairs=ordered(found.pairs)) for name, found in study.readings.items()},
        decomposition=parts and replace(parts, pairs=ordered(parts.pairs)),
        convergence=curves and replace(curves, pairs=ordered(curves.pairs)),
    )
