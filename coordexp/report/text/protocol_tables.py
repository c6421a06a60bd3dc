"""The same detections as published tables measure them: what each protocol gives, and which group it puts first."""

from collections.abc import Mapping
from itertools import pairwise

from coordexp.detection.protocols import PROTOCOLS
from coordexp.report.study.study import Study
from coordexp.report.table import Table
from coordexp.report.text.tables import UNDEFINED, written
from coordexp.statistics.protocols import contrary_sentences

TITLE = "The same detections under other protocols"
AS_SCORED = "AP, as scored"


def protocol_tables(study: Study) -> list[Table]:
    """Return one table, a row a protocol; none where nothing is compared."""
    protocols, comparison = study.protocols, study.comparison
    if protocols is None or comparison is None:
        return []
    groups = comparison.groups
    scored = {group: comparison.value[group].value for group in groups}
    rows = [_row(AS_SCORED, scored, sorted(groups, key=lambda group: -scored[group]))]
    rows += [
        _row(protocol.head, protocols.values[protocol.name], protocols.ranking(protocol.name)) for protocol in PROTOCOLS
    ]
    notes = contrary_sentences(protocols)
    if len(groups) > 1 and not notes:
        notes = ["No protocol significantly turns round what differs as scored."]
    how = ", each group by its own reading, constrained decoding" if study.data.trained else ""
    return [Table.of(f"{TITLE}{how}", ("protocol", *groups, "ranking"), rows, notes)]


def _row(head: str, values: Mapping[str, float | None], ranking: list[str]) -> tuple[str, ...]:
    """Return a protocol's values, and the groups from the best on, equal ones with a sign of equality."""
    shown = [written(value) for value in values.values()]
    order = "".join(ranking[:1])
    for better, group in pairwise(ranking):
        order += f"{' =' if values[better] == values[group] else ','} {group}"
    return (head, *shown, order or UNDEFINED)
