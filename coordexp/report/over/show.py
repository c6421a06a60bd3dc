"""A comparison over a key as sentences, tables and a chart."""

from collections.abc import Sequence

from coordexp.data.units import counted_images
from coordexp.errors import counted
from coordexp.report.charts.panels import Row, row_chart
from coordexp.report.figures import LOOKS, Chart, Look
from coordexp.report.over.compare import READINGS, OverStudy
from coordexp.report.table import Table
from coordexp.report.text.tables import MINUS, UNDEFINED, with_interval
from coordexp.statistics.leads import FEWEST_SEEDS, Lead, LeadChange, Leads
from coordexp.statistics.results import Estimate
from coordexp.statistics.verdict import p_is, p_value

_SEED_WORDS = {1: "one seed carries", 2: "two seeds carry"}


def over_sentences(study: OverStudy) -> list[str]:
    """Return how the lead of each group changes, the lead at the last value less the lead at the first.

    Changes over all values come first, by each group's own reading before argmax; then those of groups that only some
    experiments have.
    """
    whole: list[str] = []
    partial: list[str] = []
    for reading, leads in study.readings.items():
        for change in leads.changes:
            sentence = _change_sentence(study, leads, change, READINGS[reading])
            is_whole = (change.first, change.last) == (study.experiments[0].name, study.experiments[-1].name)
            (whole if is_whole else partial).append(sentence)
    sentences = [*whole, *partial]
    return sentences or ["No group has a lead at two values, so no change of a lead is known."]


def over_summary(study: OverStudy) -> str:
    """Return what is compared: the experiments with their values, the images, and how intervals are made."""
    leads = study.readings["own"]
    values = ", ".join(f"{experiment.name} {experiment.label}" for experiment in study.experiments)
    images = counted_images(leads.num_images, leads.num_units)
    return (
        f"{study.key}: {values}. The lead of a group is its AP minus that of {study.reference} in the same experiment, "
        f"paired by image and seed number; {images}; intervals of 95 % from {leads.resamples} resamples, the same in "
        "all experiments."
    )


def over_tables(study: OverStudy) -> list[Table]:
    """Return the changes of leads, the leads at each value, and AP of each group at each value."""
    return [table for table in (_changes_table(study), _leads_table(study), _ap_table(study)) if table.rows]


def over_notes(study: OverStudy) -> list[str]:
    """Return what a reader must know to read the tables rightly, a sentence each."""
    boxes = ", ".join(f"{group} {kind}" for group, kind in study.boxes.items())
    notes = [
        f"Own reading: {boxes}. All by argmax: every group by the likeliest bin of each coordinate.",
        "p belongs to the interval and is corrected (Holm) for all rows of its reading in its table.",
        f"Fewer than {FEWEST_SEEDS} seeds carry no claim, whatever the interval says.",
        "Each value is an experiment of its own, with its own schedule: no row is a point of a training curve.",
    ]
    return notes if study.units is None else [*notes, *study.units.remarks]


def over_charts(study: OverStudy) -> list[Chart]:
    """Draw the leads at each value, one chart a reading, a mark a group."""
    looks = over_looks(study)
    charts: list[Chart] = []
    for reading, leads in study.readings.items():
        estimates = {(lead.amount, lead.group): lead.difference for lead in leads.leads}
        rows: list[Row] = []
        for experiment in study.experiments:
            marks = [(group, look, estimates.get((experiment.name, group))) for group, look in looks.items()]
            rows.append(Row(experiment.label, experiment.name, marks))
        title = f"Lead over {study.reference}, {READINGS[reading]}"
        note = f"By {study.key}; 95 % intervals. From the top of each row: {', '.join(looks)}."
        charts.append(row_chart(title, rows, x="difference of AP", zero=True, note=note))
    return charts


def over_looks(study: OverStudy) -> dict[str, Look]:
    """Return how each group is drawn."""
    return {group: LOOKS[(place + 1) % len(LOOKS)] for place, group in enumerate(study.groups)}


def _change_sentence(study: OverStudy, leads: Leads, change: LeadChange, reading_head: str) -> str:
    where = f"lead at {study.label(change.last)} less lead at {study.label(change.first)}"
    lead = f"{_pair(change.group, leads)}, {reading_head}: {where}"
    if change.difference is None:
        return f"{lead}: not known, since no seed of both groups is there at both."
    value, interval = with_interval(change.difference, signed=True)
    seeds = counted(len(change.seeds), "seed")
    return f"{lead} = {value} {interval} (95 % interval, {seeds}, {p_is(change.p_holm)}): {_claim(change)}."


def _claim(change: LeadChange) -> str:
    """Return what a change says, as the end of a sentence."""
    if change.difference is None or not change.carries_claim:
        num_seeds = len(change.seeds)
        return f"{_SEED_WORDS.get(num_seeds, 'no seed carries')} no claim"
    if not change.is_shown:
        return "that the lead changes cannot be shown"
    return "the lead grows" if change.difference.value > 0 else "the lead shrinks"


def _changes_table(study: OverStudy) -> Table:
    rows: list[tuple[str, ...]] = []
    for reading, leads in study.readings.items():
        for change in leads.changes:
            rows.append(
                (
                    _pair(change.group, leads),
                    READINGS[reading],
                    study.label(change.first),
                    study.label(change.last),
                    *_estimate_cells(change.difference),
                    p_value(change.p_holm),
                    _seed_numbers(change.seeds),
                    _claim(change),
                )
            )
    heads = ("pair", "reading", "first", "last", "change", "95 % interval", "p, corrected", "seeds", "verdict")
    return Table.of(f"Lead at the last {study.key} less lead at the first", heads, rows)


def _leads_table(study: OverStudy) -> Table:
    rows: list[tuple[str, ...]] = []
    for reading, leads in study.readings.items():
        for lead in leads.leads:
            rows.append(_lead_cells(study, leads, lead, READINGS[reading]))
    heads = (study.key, "pair", "reading", "difference", "95 % interval", "p, corrected", "seeds")
    return Table.of(f"Difference of AP to {study.reference} at each {study.key}", heads, rows)


def _lead_cells(study: OverStudy, leads: Leads, lead: Lead, reading_head: str) -> tuple[str, ...]:
    return (
        study.label(lead.amount),
        _pair(lead.group, leads),
        reading_head,
        *_estimate_cells(lead.difference),
        p_value(lead.p_holm),
        _seed_numbers(lead.seeds),
    )


def _ap_table(study: OverStudy) -> Table:
    rows: list[tuple[str, ...]] = []
    for reading, leads in study.readings.items():
        for amount, groups in leads.ap.items():
            for group, estimate in groups.items():
                seeds = tuple(leads.ap_by_seed[amount][group])
                cells = with_interval(estimate)
                rows.append((study.label(amount), group, READINGS[reading], *cells, _seed_numbers(seeds)))
    heads = (study.key, "group", "reading", "AP", "95 % interval", "seeds")
    return Table.of(f"AP at each {study.key}", heads, rows)


def _pair(group: str, leads: Leads) -> str:
    return f"{group} {MINUS} {leads.reference}"


def _estimate_cells(estimate: Estimate | None) -> tuple[str, str]:
    return (UNDEFINED, UNDEFINED) if estimate is None else with_interval(estimate, signed=True)


def _seed_numbers(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds)) or UNDEFINED
