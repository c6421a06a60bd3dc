"""A study as people read it: in every pair the group that is higher by the headline stands first."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from coordexp.report.study.study import Study
from coordexp.statistics.results import Comparison, Convergence, Estimate, PairParts, PairResult

_Pair = TypeVar("_Pair", PairResult, PairParts)
_Couple = tuple[str, str]


def better_first(study: Study) -> Study:
    """Return the study with the better group of each pair first, and the pairs of the best group before the others.

    Which group is better is decided once, by the pair's difference under each group's own reading: a pair has the
    same name in every table, and a negative difference there says that it comes out the other way round. Files for
    programs keep the experiment's order.
    """
    if study.comparison is None:
        return study
    order = _Order.of(study.comparison)
    parts, curves = study.decomposition, study.convergence
    return replace(
        study,
        comparison=order.comparison(study.comparison),
        readings={name: order.comparison(found) for name, found in study.readings.items()},
        decomposition=parts and replace(parts, pairs=order.pairs(parts.pairs)),
        convergence=curves and order.convergence(curves),
    )


@dataclass(frozen=True)
class _Order:
    """Couples of groups, the better first, in the order in which they are shown."""

    couples: tuple[_Couple, ...]

    @staticmethod
    def of(comparison: Comparison) -> "_Order":
        found = [(pair.a, pair.b) if pair.difference.value >= 0 else (pair.b, pair.a) for pair in comparison.pairs]
        value = {group: -estimate.value for group, estimate in comparison.value.items()}
        return _Order(tuple(sorted(found, key=lambda couple: (value[couple[0]], value[couple[1]]))))

    def comparison(self, found: Comparison) -> Comparison:
        return replace(found, pairs=self.pairs(found.pairs))

    def convergence(self, found: Convergence) -> Convergence:
        steps = {fraction: self._differences(couples) for fraction, couples in found.steps_to_difference.items()}
        return replace(found, area_difference=self._differences(found.area_difference), steps_to_difference=steps)

    def pairs(self, pairs: tuple[_Pair, ...]) -> tuple[_Pair, ...]:
        there = {(pair.a, pair.b): pair for pair in pairs}
        reversed_ = {(pair.b, pair.a): pair for pair in pairs}
        return tuple(
            there[couple] if couple in there else reversed_[couple].reversed()
            for couple in self.couples
            if couple in there or couple in reversed_
        )

    def _differences(self, found: Mapping[_Couple, Estimate]) -> dict[_Couple, Estimate]:
        whole = {**found, **{(b, a): estimate.reversed() for (a, b), estimate in found.items()}}
        return {couple: whole[couple] for couple in self.couples if couple in whole}
