"""Where the difference comes from: sentences, tables and charts of a real study, and what few images cannot show."""

from dataclasses import replace

import pytest

from coordexp.detection.decomposition import ERRORS
from coordexp.report.charts.comparing import why_charts
from coordexp.report.page.page import render_page
from coordexp.report.store import comparison_metrics
from coordexp.report.study.measures import MOST_RESAMPLES
from coordexp.report.study.study import Study, better_first
from coordexp.report.text.records import to_csv, to_json
from coordexp.report.text.render import to_markdown
from coordexp.report.text.why_tables import why_sentences, why_tables
from coordexp.statistics.results import Decomposition, Estimate, PairParts
from tests.unit.report.test_figures import parsed, tooltips


def made(*groups: str, **errors: tuple[float, float, float]) -> Decomposition:
    """Each pair differs by the same; what is not given differs by nothing."""
    difference = {m.name: Estimate(0.0, -0.01, 0.01) for m in ERRORS} | {"AP50": Estimate(0.1, 0.05, 0.15)}
    difference |= {f"tide_{name}": Estimate(*ends) for name, ends in errors.items()}
    value = {group: {"AP50": Estimate(0.5 - 0.01 * at)} for at, group in enumerate(groups)}
    pairs = [PairParts(a, b, difference) for at, a in enumerate(groups) for b in groups[at + 1 :]]
    return Decomposition(value, tuple(pairs), resamples=500)


def test_a_study_has_it_everywhere(paired: Study) -> None:
    found = paired.decomposition
    assert found is not None
    assert found.resamples <= MOST_RESAMPLES
    parts, answers, differences = why_tables(paired)
    assert parts.columns == answers.columns == ("part", *paired.data.groups)
    assert [row.cells[0] for row in differences.rows][:7] == ["AP50", *(m.head for m in ERRORS)]
    written = {row.cells[0]: row.cells[1:] for row in answers.rows}
    assert list(written) == [f"recall, rank {rank}" for rank in ("1", "2", "3 to 4")], "no image has more objects"
    heads = [row.cells[0] for row in differences.rows]
    assert heads == [row.cells[0] for table in (parts, answers) for row in table.rows]
    page, text = render_page(paired), to_markdown(paired)
    for sentence in why_sentences(better_first(paired)):
        assert sentence.replace("<", "&lt;") in text
    assert page.count('<h2 id="why">') == page.count('href="#why"') == 1
    assert not any("tide" in name for name in comparison_metrics(paired)), "MLflow's charts have AP alone"
    assert '"tide_missed"' in to_json(paired)
    assert ",decomposition,A,C," in to_csv(paired)


def test_sentences_name_what_each_group_loses_more_to(paired: Study) -> None:
    found = made("A", "B", localisation=(-0.06, -0.08, -0.04), missed=(0.02, 0.01, 0.03), both=(0.0004, 0.0001, 0.0008))
    (sentence,) = why_sentences(replace(paired, decomposition=found))
    assert sentence == (
        "A \u2212 B: AP50 +0.100 [+0.050, +0.150]. A loses more: 0.020 to missed; B loses more: 0.060 to localisation."
    )
    (sentence,) = why_sentences(replace(paired, decomposition=made("A", "B")))
    assert sentence.endswith("cannot be shown.")


@pytest.mark.parametrize(("num_groups", "num_pairs"), [(1, 0), (3, 3), (6, 5)])
def test_of_many_pairs_those_of_the_best_group_are_shown(paired: Study, num_groups: int, num_pairs: int) -> None:
    study = replace(paired, decomposition=made(*"ABCDEF"[:num_groups]))
    study = replace(
        study, data=replace(paired.data, runs=tuple(replace(paired.data.runs[0], group=g) for g in "ABCDEF"))
    )
    assert len(why_sentences(study)) == num_pairs
    bars, *others = why_charts(study)
    assert {f"{group}, AP50: {0.5 - 0.01 * at:g}" for at, group in enumerate("ABCDEF"[:num_groups])} <= set(
        tooltips(parsed(bars))
    )
    assert len(others) == num_pairs + 1
