"""What a comparison says, in one sentence that claims no more than the design allows."""

from dataclasses import replace

from coordexp.statistics.results import Comparison, Estimate, PairResult


def verdict(comparison: Comparison) -> str:
    """Return one sentence: which group is best, by how much, and against which that cannot be said.

    With one seed it speaks of checkpoints, with several of groups. Where no difference is shown, it
    gives the smallest one the design would have found.
    """
    if not comparison.pairs:
        return _alone(comparison)
    best = max(comparison.groups, key=lambda group: comparison.value[group].value)
    ours = [_from(pair, best) for pair in comparison.pairs if best in (pair.a, pair.b)]
    beaten, open_ = [p for p in ours if p.significant], [p for p in ours if not p.significant]
    if not beaten:
        return f"{_nothing(comparison, open_)}{_scope(ours)}."
    subject = "The checkpoint of group" if _one_seed(ours) else "Group"
    sentence = (
        f"{subject} {best} has the highest {comparison.metric}, {comparison.value[best].value:.3f}: "
        + " and ".join(f"{_by(pair)} above {pair.b}" for pair in beaten)
    )
    if open_:
        names = " or ".join(pair.b for pair in open_)
        sentence += f", but no difference from {names} can be shown ({'; '.join(_open(pair) for pair in open_)})"
    return f"{sentence}{_scope(ours)}."


def _alone(comparison: Comparison) -> str:
    group = comparison.groups[0]
    what = "The checkpoint of group" if len(comparison.seeds[group]) == 1 else "Group"
    found = comparison.value[group]
    return f"{what} {group} has {comparison.metric} {found.value:.3f}{_interval(found)}; there is no other to compare."


def _nothing(comparison: Comparison, pairs: list[PairResult]) -> str:
    """No pair with the best group is told apart."""
    names = [pairs[0].a, *(pair.b for pair in pairs)]
    who = " and ".join(names) if len(names) == 2 else f"{', '.join(names[:-1])} and {names[-1]}"
    kind = "the checkpoints of " if _one_seed(pairs) else ""
    told = [pair for pair in comparison.pairs if pair.significant]
    between = f"between {kind}{who}" if not told else f"between {names[0]}, the highest, and {' or '.join(names[1:])}"
    return f"No difference of {comparison.metric} can be shown {between}: {'; '.join(_open(pair) for pair in pairs)}"


def _open(pair: PairResult) -> str:
    found = f"{pair.a} - {pair.b} = {pair.difference.value:+.4f}{_interval(pair.difference)}, p = {_p(pair)}"
    if not pair.detectable:
        return found
    return f"{found}, smallest detectable about {pair.detectable:.3f}"


def _by(pair: PairResult) -> str:
    return f"{pair.difference.value:.4f}{_interval(pair.difference, p=_p(pair))}"


def _interval(found: Estimate, *, p: str | None = None) -> str:
    parts = [] if found.low is None or found.high is None else [f"95 % interval {found.low:.4f} to {found.high:.4f}"]
    parts += [] if p is None else [f"p = {p}"]
    return f" ({', '.join(parts)})" if parts else ""


def _p(pair: PairResult) -> str:
    return f"{pair.p_holm:.2g}" if pair.p_holm >= 0.001 else f"{pair.p_holm:.1e}"


def _scope(pairs: list[PairResult]) -> str:
    """What the sentence is about."""
    if _one_seed(pairs):
        return "; with one seed this is about these checkpoints, not about their losses"
    fewest = min(pair.num_seeds for pair in pairs)
    return (
        f"; over {fewest} seeds"
        if all(pair.num_seeds == fewest for pair in pairs)
        else f"; over {fewest} seeds or more"
    )


def _one_seed(pairs: list[PairResult]) -> bool:
    return any(pair.seed_std is None for pair in pairs)


def _from(pair: PairResult, group: str) -> PairResult:
    """Return the pair with ``group`` first."""
    if pair.a == group:
        return pair
    low, high = (None if end is None else -end for end in (pair.difference.high, pair.difference.low))
    return replace(pair, a=pair.b, b=pair.a, difference=Estimate(-pair.difference.value, low, high))
