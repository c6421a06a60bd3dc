"""What a comparison says, in one sentence that claims no more than the design allows.

The sentence stands in pages and files of finished experiments. Its rules are in docs/STATISTICS.md, "The sentence".
"""

from dataclasses import dataclass

from coordexp.statistics.intervals import ALPHA
from coordexp.statistics.results import Comparison, Estimate, PairResult

LEARNED = 0.01
"""Below this AP nothing worth comparing was learned: a difference there names no winner."""

_MAX_NAMED = 3
"""A sentence gives the numbers of at most this many pairs."""


@dataclass(frozen=True)
class Wording:
    """How a sentence calls what is compared.

    Attributes:
        one: stands before the name of a group with one seed.
        many: stands before the name of a group with several seeds.
        between: stands before names between which no difference can be shown.
        scope: says what a difference of single seeds is about.
        nothing: begins the sentence if all groups are below :data:`LEARNED`.
    """

    one: str
    many: str
    between: str
    scope: str
    nothing: str


RUNS = Wording(
    one="The checkpoint of group ",
    many="Group ",
    between="the checkpoints of ",
    scope="with one seed this is about these checkpoints, not about their losses",
    nothing="No group has learned to detect anything yet",
)
FILES = Wording(
    one="",
    many="",
    between="",
    scope="with one file each this is about these detectors, not about how they were made",
    nothing="None of these detectors finds anything worth comparing",
)


def verdict(comparison: Comparison, words: Wording = RUNS) -> str:
    """Return one sentence: which group is best, by how much, and against which that cannot be said.

    Its rules are in docs/STATISTICS.md, "The sentence".

    Args:
        comparison: of any number of groups.
        words: how to call what is compared.
    """
    if not comparison.pairs:
        return _alone(comparison, words)
    metric = comparison.metric
    against = _against_best(comparison)
    best = against.best
    value = comparison.value[best].value
    subject = f"{_subject(comparison, best, words)}{best}"
    if not has_learned(comparison, *comparison.groups):
        return f"{words.nothing}. The highest {metric} is {value:.4f}, of {best}. Below {LEARNED} no winner is named."
    if against.above:
        higher_groups = " and ".join(f"{pair.b} is {_by(_from(pair, pair.b))} above {best}" for pair in against.above)
        return (
            f"{subject} has the highest {metric} over all its seeds, {value:.3f}, but over the seeds both have "
            f"{higher_groups}: to compare groups, evaluate the same seeds of each."
        )
    scope = _scope(against.pairs, words)
    if not against.beaten:
        between = _between(comparison, against.open, words)
        return f"No difference of {metric} can be shown {between}: {_all_open(against.open)}{scope}."

    # Of groups with other numbers of seeds, some differences may be of checkpoints, and all are then told as such.
    if not _one_seed(against.pairs):
        subject = f"{words.many}{best}"
    but = ""
    if against.open:
        names = " or ".join(pair.b for pair in against.open)
        but = f", but no difference from {names} can be shown ({_all_open(against.open)})"
    return f"{subject} has the highest {metric}, {value:.3f}: {_won(against.beaten)}{but}{scope}."


def _won(beaten: list[PairResult]) -> str:
    """Return by how much a group is above others: of each, or of many the nearest and the range of the others."""
    if len(beaten) <= _MAX_NAMED:
        return " and ".join(f"{_by(pair)} above {pair.b}" for pair in beaten)
    nearest, *further_pairs = sorted(beaten, key=lambda pair: pair.difference.value)
    largest_p = p_is(max(pair.p_holm for pair in further_pairs)).replace("=", "at most")
    return (
        f"{_by(nearest)} above {nearest.b}, the next, and {further_pairs[0].difference.value:.4f} to "
        f"{further_pairs[-1].difference.value:.4f} above {len(further_pairs)} others (each {largest_p})"
    )


def brief_verdict(comparison: Comparison, words: Wording = RUNS) -> str:
    """Return what :func:`verdict` says without differences, intervals and p-values: for a headline above them.

    Args:
        comparison: of any number of groups.
        words: how to call what is compared.
    """
    if not comparison.pairs:
        return _alone(comparison, words)
    if not has_learned(comparison, *comparison.groups):
        return f"{words.nothing}."
    against = _against_best(comparison)
    best = against.best
    has_highest = f"{_subject(comparison, best, words)}{best} has the highest {comparison.metric}"
    if against.above:
        return f"{has_highest} over all its seeds, but not over those it shares."
    if not against.beaten:
        return f"No difference of {comparison.metric} can be shown {_between(comparison, against.open, words)}."
    has_highest = f"{has_highest}, {comparison.value[best].value:.3f}"
    if against.open:
        return f"{has_highest}, but no difference from {' or '.join(pair.b for pair in against.open)} can be shown."
    *names, last = [pair.b for pair in against.beaten]
    if len(against.beaten) > _MAX_NAMED:
        return f"{has_highest}, above all {len(against.beaten)} others."
    return f"{has_highest}, above {', '.join(names)} and {last}." if names else f"{has_highest}, above {last}."


@dataclass(frozen=True)
class _AgainstBest:
    """The highest group and its pairs, the group itself first in each.

    Attributes:
        best: the group with the highest value over all its seeds.
        beaten: pairs in which it is significantly above.
        open: pairs that show no difference.
        above: pairs in which it is significantly below; with other seeds in each group that can be.
    """

    best: str
    beaten: list[PairResult]
    open: list[PairResult]
    above: list[PairResult]

    @property
    def pairs(self) -> list[PairResult]:
        return [*self.beaten, *self.open, *self.above]


def _against_best(comparison: Comparison) -> _AgainstBest:
    best = max(comparison.groups, key=lambda group: comparison.value[group].value)
    pairs = [_from(pair, best) for pair in comparison.pairs if best in (pair.a, pair.b)]
    return _AgainstBest(
        best=best,
        beaten=[pair for pair in pairs if pair.significant and pair.difference.value > 0],
        open=[pair for pair in pairs if not pair.significant],
        above=[pair for pair in pairs if pair.significant and pair.difference.value <= 0],
    )


def has_learned(comparison: Comparison, *groups: str) -> bool:
    """Return whether one of some groups reaches :data:`LEARNED`."""
    return max(comparison.value[group].value for group in groups) >= LEARNED


def open_reason(pair: PairResult, num_pairs: int) -> str:
    """Return why a pair is not significant although its interval leaves 0 out; "" if there is nothing to explain.

    Args:
        pair: of a comparison.
        num_pairs: of the comparison, for which p is corrected.
    """
    if pair.significant or not pair.difference.excludes_zero:
        return ""
    if pair.p_swap >= ALPHA:
        return f"both tests have to agree, and p of the swap test is {p_value(pair.p_swap)}"
    return f"that interval is of this pair alone, and p corrected for {num_pairs} pairs is {p_value(pair.p_holm)}"


def _alone(comparison: Comparison, words: Wording) -> str:
    """Return the sentence about the only group."""
    group = comparison.groups[0]
    estimate = comparison.value[group]
    has_value = f"has {comparison.metric} {estimate.value:.3f}{_interval(estimate)}"
    return f"{_subject(comparison, group, words)}{group} {has_value}; there is no other to compare."


def _subject(comparison: Comparison, group: str, words: Wording) -> str:
    return words.one if len(comparison.seeds[group]) == 1 else words.many


def _between(comparison: Comparison, pairs: list[PairResult], words: Wording) -> str:
    """Return between which groups no difference can be shown.

    If other pairs do differ, only the best group's are meant, and the sentence says so.
    """
    names = [pair.b for pair in pairs]
    if any(pair.significant for pair in comparison.pairs):
        return f"between {pairs[0].a}, the highest, and {' or '.join(names)}"
    kind = words.between if _one_seed(pairs) else ""
    return f"between {kind}{', '.join([pairs[0].a, *names[:-1]])} and {names[-1]}"


def _all_open(pairs: list[PairResult]) -> str:
    """Return the numbers of every pair; of many pairs those of the nearest."""
    named = pairs
    if len(pairs) > _MAX_NAMED:
        named = sorted(pairs, key=lambda pair: abs(pair.difference.value))[:_MAX_NAMED]
    clauses: list[str] = []
    for pair in named:
        interval = _interval(pair.difference)
        clause = f"{pair.a} - {pair.b} = {pair.difference.value:+.4f}{interval}, {p_is(pair.p_holm)}"
        if pair.detectable:
            clause += f", smallest detectable about {pair.detectable:.3f}"
        clauses.append(clause)
    if len(pairs) > _MAX_NAMED:
        clauses.append(f"{len(pairs) - _MAX_NAMED} more in the table")
    return "; ".join(clauses)


def _by(pair: PairResult) -> str:
    return f"{pair.difference.value:.4f}{_interval(pair.difference, p=pair.p_holm)}"


def _interval(estimate: Estimate, *, p: float | None = None) -> str:
    """Return an interval and p in brackets, as far as they are there."""
    facts: list[str] = []
    if estimate.low is not None and estimate.high is not None:
        facts.append(f"95 % interval {estimate.low:.4f} to {estimate.high:.4f}")
    if p is not None:
        facts.append(p_is(p))
    return f" ({', '.join(facts)})" if facts else ""


def p_value(p: float) -> str:
    """Return a p-value as it is printed in tables and sentences: ``0.012``, or ``< 0.001``."""
    return "< 0.001" if p < 0.001 else f"{p:.2g}"


def p_is(p: float) -> str:
    """Return ``p = 0.012``, or ``p < 0.001``."""
    return f"p {p_value(p)}" if p < 0.001 else f"p = {p_value(p)}"


def _scope(pairs: list[PairResult], words: Wording) -> str:
    """Say whether the sentence is about checkpoints or about groups."""
    if _one_seed(pairs):
        return f"; {words.scope}"
    fewest = min(pair.num_seeds for pair in pairs)
    more = "" if all(pair.num_seeds == fewest for pair in pairs) else " or more"
    # Measured: with two seeds, only a difference of many standard errors is found (docs/STATISTICS.md, power).
    few = ", which are too few to rely on: plan three or more" if fewest == 2 else ""
    return f"; over {fewest} seeds{more}{few}"


def _one_seed(pairs: list[PairResult]) -> bool:
    return any(pair.seed_std is None for pair in pairs)


def _from(pair: PairResult, group: str) -> PairResult:
    return pair if pair.a == group else pair.reversed()
