"""What a report is about as text: a line a group and a line a fact, and the loss terms in words and formula."""

from coordexp.metrics import BoxKind
from coordexp.report.study.about import About, TermUsed
from coordexp.report.study.study import Study
from coordexp.report.text.tables import Table, TableRow

ABOUT = "What is compared"
READ_BY: dict[BoxKind, str] = {"argmax": "argmax (the most likely bin)", "expected": "expectation (the mean over bins)"}
IN_DIGITS = "coordinates written as digits of plain text, no coord tokens; boxes read as written"
NOTATION = (
    "Each sum is divided by the number of its units in the step. z are the logits, y is the true token, lse the "
    "log-sum-exp; c and b are the expected and the true coordinates as fractions of the image side; s is the softmax "
    "over the 1,000 coord tokens (t at a temperature), CDF_s its sum up to a bin, q the target around the true bin, "
    "and m the share that coord tokens have of the whole vocabulary (m' at a temperature)."
)


def about_lines(study: Study) -> list[tuple[str, str]]:
    """Return a pair for each group, its name and its loss, then the facts; none where nothing is known."""
    if study.about is None:
        return []
    readings = study.data.readings
    reading = {
        group: IN_DIGITS if group in study.about.in_digits else f"boxes read by {READ_BY[readings[group]]}"
        for group in study.about.groups
    }
    groups = [(group, f"loss = {loss_of(terms)}; {reading[group]}") for group, terms in study.about.groups.items()]
    facts = [*groups, *study.about.facts]
    if study.fairness is not None and study.fairness.rounding:
        facts.append(("last digits", f"may differ by {'; '.join(study.fairness.rounding)}"))
    return facts


def loss_of(terms: tuple[TermUsed, ...]) -> str:
    """Return ``text_ce + 2 x box_l1``."""
    return " + ".join(term.name if term.weight == 1 else f"{term.weight:g} x {term.name}" for term in terms)


def terms_table(found: About | None) -> Table | None:
    """Return the terms of all groups in words and formula."""
    rows = {} if found is None else {(t.name, t.knobs): t for terms in found.groups.values() for t in terms}
    if not rows:
        return None
    lines = [TableRow((t.name, t.words, t.formula, t.unit, t.knobs or "-")) for t in rows.values()]
    heads = ("loss term", "in words", "sum over a batch", "divided by the number of", "settings")
    return Table("The loss terms", heads, tuple(lines), (NOTATION,))
