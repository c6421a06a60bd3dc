"""In every table, sentence and chart the better group of a pair stands first; files for programs keep their order."""

import dataclasses
import io
import re

import pytest
from rich.console import Console

from coordexp.report.page.page import render_page
from coordexp.report.store import description
from coordexp.report.study.study import Study, better_first
from coordexp.report.text.records import to_csv, to_json
from coordexp.report.text.render import render_report, to_latex, to_markdown
from coordexp.report.text.study_tables import comparison_tables, readings_tables
from coordexp.statistics.results import Comparison, Estimate


def lowered(comparison: Comparison, *, p_holm: float = 0.2) -> Comparison:
    """The last group is best and the first one worst; each interval leaves 0 out."""
    value = {group: Estimate(0.3 + 0.1 * place) for place, group in enumerate(comparison.groups)}
    pairs = tuple(
        dataclasses.replace(
            pair,
            difference=Estimate(value[pair.a].value - value[pair.b].value, -0.3, -0.05),
            p_swap=0.01,
            p_holm=p_holm,
        )
        for pair in comparison.pairs
    )
    return dataclasses.replace(comparison, value=value, pairs=pairs)


@pytest.fixture
def rising(paired: Study) -> Study:
    assert paired.comparison is not None
    readings = {name: lowered(found) for name, found in paired.readings.items()}
    return dataclasses.replace(paired, comparison=readings["own"], readings=readings)


def test_every_part_names_a_pair_alike(rising: Study) -> None:
    shown = better_first(rising)
    couples = [("C", "B<i>"), ("C", "A"), ("B<i>", "A")]
    assert {
        name: [(pair.a, pair.b) for pair in found.pairs] for name, found in shown.readings.items()
    } == dict.fromkeys(rising.readings, couples)
    assert shown.decomposition is not None
    assert rising.decomposition is not None
    assert [(pair.a, pair.b) for pair in shown.decomposition.pairs] == couples
    before = rising.decomposition.pairs[0].difference["AP50"]
    after = shown.decomposition.pairs[-1].difference["AP50"]
    assert before.low is not None
    assert (after.value, after.high) == (-before.value, -before.low)
    assert shown.convergence is not None
    assert rising.convergence is not None
    assert [(pair.a, pair.b) for pair in shown.convergence.pairs] == couples
    before, after = rising.convergence.pairs[1], shown.convergence.pairs[1]
    assert after.area is not None
    assert before.area is not None
    assert after.area.value == -before.area.value
    assert set(after.steps_to) == set(before.steps_to)


@pytest.mark.usefixtures("undrawn")
def test_all_that_people_read_has_it_and_files_for_programs_have_not(rising: Study) -> None:
    out = io.StringIO()
    render_report(rising, Console(file=out, width=160))
    texts = [out.getvalue(), to_markdown(rising), to_latex(rising), render_page(rising), description(rising, page="x")]
    for text in texts:
        assert re.search(r"C(</text>)? (\u2212|\$-\$) A\b", text)
        assert not re.search(r"\bA (\u2212|\$-\$) (B|C)", text)
    assert ",pair,A,C," in to_csv(rising)
    assert '"against": "A"' not in to_json(rising)


def test_an_interval_that_leaves_0_out_is_explained_below_its_table(rising: Study) -> None:
    *_, table = comparison_tables(better_first(rising))
    assert "corrected for 3 pairs is 0.2" in table.notes[0]
    assert {row.cells[-1] for row in table.rows} == {"not told apart"}
    *_, others = readings_tables(better_first(rising))
    assert len(others.notes) == 9, "three pairs under three other readings"
    assert rising.comparison is not None
    told = dataclasses.replace(rising, comparison=lowered(rising.comparison, p_holm=0.01))
    assert comparison_tables(told)[-1].notes == ()
