"""How much more is needed: what two more seeds, and twice the images or units, would detect."""

from coordexp.report.study.study import Study
from coordexp.report.table import Table
from coordexp.report.text.tables import pair_name, written
from coordexp.statistics.power import further
from coordexp.statistics.results import PairResult

TITLE = "How much more is needed"


def further_tables(study: Study) -> list[Table]:
    """Return a row a pair, with a sentence on those that are not told apart; none where nothing is known of a pair."""
    comparison = study.comparison
    if comparison is None:
        return []
    num_units = comparison.drawn_units
    more = "twice the images" if num_units is None else "twice the units"
    rows = [_row(pair, num_units) for pair in comparison.pairs if pair.detectable is not None]
    if not rows:
        return []
    heads = ("pair", "difference", "detectable", "two more seeds", more)
    notes = [
        "Roughly, from the variances of these runs, which are estimates: no promise. Detectable is the smallest true "
        "difference that is found four times in five.",
    ]
    if any(pair.seed_std is None for pair in comparison.pairs):
        notes.append("With one seed nothing is known of what seeds do.")
    if num_units is not None:
        notes.append("More images of the same units are not asked about: how much they add is not known.")
    return [
        Table.of(f"{TITLE}: the smallest difference of {comparison.metric} that would be found", heads, rows, notes)
    ]


def further_sentences(study: Study) -> list[str]:
    """Return for the pair of the best groups that is not told apart what would be found with more."""
    comparison = study.comparison
    if comparison is None:
        return []
    open_pairs = [pair for pair in comparison.pairs if not pair.significant and pair.detectable is not None]
    if not open_pairs:
        return []
    best = max(open_pairs, key=lambda pair: max(comparison.value[pair.a].value, comparison.value[pair.b].value))
    num_units = comparison.drawn_units
    detectable = further(best, num_units)
    more = "twice the images" if num_units is None else "twice the units"
    with_more = {"two more seeds": detectable.more_seeds, more: detectable.more_sample}
    texts = [f"with {addition} {written(value)}" for addition, value in with_more.items() if value is not None]
    difference = written(best.difference.value, signed=True)
    return [
        f"{pair_name(best)} is {difference} and not told apart. The smallest difference that would be found is about "
        f"{written(best.detectable)}, {' and '.join(texts)}."
    ]


def _row(pair: PairResult, num_units: int | None) -> tuple[str, ...]:
    with_more = further(pair, num_units)
    values = (pair.detectable, with_more.more_seeds, with_more.more_sample)
    return (pair_name(pair), written(pair.difference.value, signed=True), *map(written, values))
