"""How much more is needed: what two more seeds, and twice the images or units, would detect."""

from coordexp.report.study.study import Study
from coordexp.report.text.tables import Table, pair_name, written
from coordexp.statistics.power import further
from coordexp.statistics.results import PairResult

TITLE = "How much more is needed"


def further_tables(study: Study) -> list[Table]:
    """Return a row a pair, with a sentence on those that are not told apart; none where nothing is known of a pair."""
    found = study.comparison
    if found is None:
        return []
    num_units = found.drawn_units
    more = "twice the images" if num_units is None else "twice the units"
    rows = [_row(pair, num_units) for pair in found.pairs if pair.detectable is not None]
    if not rows:
        return []
    heads = ("pair", "difference", "detectable", "two more seeds", more)
    notes = [
        "Roughly, from the variances of these runs, which are estimates: no promise. Detectable is the smallest true "
        "difference that is found four times in five.",
    ]
    if any(pair.seed_std is None for pair in found.pairs):
        notes.append("With one seed nothing is known of what seeds do.")
    if num_units is not None:
        notes.append("More images of the same units are not asked about: how much they add is not known.")
    return [Table.of(f"{TITLE}: the smallest difference of {found.metric} that would be found", heads, rows, notes)]


def further_sentences(study: Study) -> list[str]:
    """Return for the pair of the best groups that is not told apart what would be found with more."""
    found = study.comparison
    if found is None:
        return []
    open_pairs = [pair for pair in found.pairs if not pair.significant and pair.detectable is not None]
    if not open_pairs:
        return []
    best = max(open_pairs, key=lambda pair: max(found.value[pair.a].value, found.value[pair.b].value))
    num_units = found.drawn_units
    would = further(best, num_units)
    more = "twice the images" if num_units is None else "twice the units"
    with_more = {"two more seeds": would.more_seeds, more: would.more_sample}
    known = [f"with {what} {written(value)}" for what, value in with_more.items() if value is not None]
    difference = written(best.difference.value, signed=True)
    return [
        f"{pair_name(best)} is {difference} and not told apart. The smallest difference that would be found is about "
        f"{written(best.detectable)}, {' and '.join(known)}."
    ]


def _row(pair: PairResult, num_units: int | None) -> tuple[str, ...]:
    would = further(pair, num_units)
    values = (pair.detectable, would.more_seeds, would.more_sample)
    return (pair_name(pair), written(pair.difference.value, signed=True), *map(written, values))
