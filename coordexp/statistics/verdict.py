"""What a comparison says, in one sentence that claims no more than the design allows."""

from dataclasses import dataclass

from coordexp.statistics.intervals import ALPHA
from coordexp.statistics.results import Comparison, Estimate, PairResult

LEARNED = 0.01
"""An AP below which nothing worth comparing was learned: a difference there names no winner."""
_MAX_NAMED = 3


@dataclass(frozen=True)
class Wording:
    """How a sentence calls what is compared."""

    one: str  # before the name of a group with one seed
    many: str  # before one with several
    between: str  # before names of which no difference can be shown
    scope: str  # what a difference of single seeds is about
    nothing: str  # begins the sentence where all of them are below LEARNED


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
    """
    if not comparison.pairs:
        return _alone(comparison, words)
    metric, (best, beaten, open_, above) = comparison.metric, _against_best(comparison)
    ours = [*beaten, *open_, *above]
    subject, value = f"{_subject(comparison, best, words)}{best}", comparison.value[best].value
    if not has_learned(comparison, *comparison.groups):
        return f"{words.nothing}. The highest {metric} is {value:.4f}, of {best}. Below {LEARNED} no winner is named."
    if above:
        others = " and ".join(f"{pair.b} is {_by(_from(pair, pair.b))} above {best}" for pair in above)
        return (
            f"{subject} has the highest {metric} over all its seeds, {value:.3f}, but over the seeds both have "
            f"{others}: to compare groups, evaluate the same seeds of each."
        )
    if not beaten:
        between = _between(comparison, open_, words)
        return f"No difference of {metric} can be shown {between}: {_all_open(open_)}{_scope(ours, words)}."
    # Of groups with other numbers of seeds, some differences may be of checkpoints, and all are then told as such.
    subject = subject if _one_seed(ours) else f"{words.many}{best}"
    if len(beaten) <= _MAX_NAMED:
        won = " and ".join(f"{_by(pair)} above {pair.b}" for pair in beaten)
    else:
        nearest, *others = sorted(beaten, key=lambda pair: pair.difference.value)
        won = (
            f"{_by(nearest)} above {nearest.b}, the next, and {others[0].difference.value:.4f} to "
            f"{others[-1].difference.value:.4f} above {len(others)} others "
            f"(each {p_is(max(pair.p_holm for pair in others)).replace('=', 'at most')})"
        )
    names = " or ".join(pair.b for pair in open_)
    but = f", but no difference from {names} can be shown ({_all_open(open_)})" if open_ else ""
    return f"{subject} has the highest {metric}, {value:.3f}: {won}{but}{_scope(ours, words)}."


def brief_verdict(comparison: Comparison, words: Wording = RUNS) -> str:
    """Return what :func:`verdict` says without differences, intervals and p-values: for a headline above them."""
    if not comparison.pairs:
        return _alone(comparison, words)
    if not has_learned(comparison, *comparison.groups):
        return f"{words.nothing}."
    best, beaten, open_, above = _against_best(comparison)
    has = f"{_subject(comparison, best, words)}{best} has the highest {comparison.metric}"
    if above:
        return f"{has} over all its seeds, but not over those it shares."
    if not beaten:
        return f"No difference of {comparison.metric} can be shown {_between(comparison, open_, words)}."
    has = f"{has}, {comparison.value[best].value:.3f}"
    if open_:
        return f"{has}, but no difference from {' or '.join(pair.b for pair in open_)} can be shown."
    *names, last = [pair.b for pair in beaten]
    listed = f"{', '.join(names)} and {last}" if names else last
    return f"{has}, above {listed if len(beaten) <= _MAX_NAMED else f'all {len(beaten)} others'}."


def _against_best(comparison: Comparison) -> tuple[str, list[PairResult], list[PairResult], list[PairResult]]:
    """Return the highest group and its pairs, itself first: it is above, it is left open, it is below."""
    best = max(comparison.groups, key=lambda group: comparison.value[group].value)
    ours = [_from(pair, best) for pair in comparison.pairs if best in (pair.a, pair.b)]
    shown = [pair for pair in ours if pair.significant]
    return (
        best,
        [pair for pair in shown if pair.difference.value > 0],
        [pair for pair in ours if not pair.significant],
        [pair for pair in shown if pair.difference.value <= 0],
    )


def has_learned(comparison: Comparison, *groups: str) -> bool:
    """Return whether one of some groups reaches :data:`LEARNED`."""
    return max(comparison.value[group].value for group in groups) >= LEARNED


def open_reason(pair: PairResult, num_pairs: int) -> str:
    """Return why a pair is not significant although its interval leaves 0 out; "" otherwise."""
    if pair.significant or not pair.difference.excludes_zero:
        return ""
    if pair.p_swap >= ALPHA:
        return f"both tests have to agree, and p of the swap test is {p_value(pair.p_swap)}"
    return f"that interval is of this pair alone, and p corrected for {num_pairs} pairs is {p_value(pair.p_holm)}"


def _alone(comparison: Comparison, words: Wording) -> str:
    group = comparison.groups[0]
    found = comparison.value[group]
    has = f"has {comparison.metric} {found.value:.3f}{_interval(found)}"
    return f"{_subject(comparison, group, words)}{group} {has}; there is no other to compare."


def _subject(comparison: Comparison, group: str, words: Wording) -> str:
    return words.one if len(comparison.seeds[group]) == 1 else words.many


def _between(comparison: Comparison, pairs: list[PairResult], words: Wording) -> str:
    names = [pair.b for pair in pairs]
    if any(pair.significant for pair in comparison.pairs):
        return f"between {pairs[0].a}, the highest, and {' or '.join(names)}"
    kind = words.between if _one_seed(pairs) else ""
    return f"between {kind}{', '.join([pairs[0].a, *names[:-1]])} and {names[-1]}"


def _all_open(pairs: list[PairResult]) -> str:
    """Give the numbers of every pair, or of many those of the nearest."""
    named = pairs
    if len(pairs) > _MAX_NAMED:
        named = sorted(pairs, key=lambda pair: abs(pair.difference.value))[:_MAX_NAMED]
    said = [
        f"{pair.a} - {pair.b} = {pair.difference.value:+.4f}{_interval(pair.difference)}, {p_is(pair.p_holm)}"
        + (f", smallest detectable about {pair.detectable:.3f}" if pair.detectable else "")
        for pair in named
    ]
    return "; ".join(said if named is pairs else [*said, f"{len(pairs) - _MAX_NAMED} more in the table"])


def _by(pair: PairResult) -> str:
    return f"{pair.difference.value:.4f}{_interval(pair.difference, p=pair.p_holm)}"


def _interval(found: Estimate, *, p: float | None = None) -> str:
    parts = [] if found.low is None or found.high is None else [f"95 % interval {found.low:.4f} to {found.high:.4f}"]
    parts += [] if p is None else [p_is(p)]
    return f" ({', '.join(parts)})" if parts else ""


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
    # Measured: with two, only a difference of many standard errors is found (docs/STATISTICS.md, power).
    few = ", which are too few to rely on: plan three or more" if fewest == 2 else ""
    return f"; over {fewest} seeds{more}{few}"


def _one_seed(pairs: list[PairResult]) -> bool:
    return any(pair.seed_std is None for pair in pairs)


def _from(pair: PairResult, group: str) -> PairResult:
    return pair if pair.a == group else pair.reversed()
