"""Leads of groups at several amounts: equal to the pairs of a comparison, and paired in their change."""

from pathlib import Path

import pytest

from coordexp.errors import ComparisonError
from coordexp.statistics import compare
from coordexp.statistics.leads import compare_leads
from tests.support.detections import write_rows
from tests.unit.statistics.test_comparison import found_in, truth_of

SEEDS = (0, 1, 2)
SPREADS = {"few": {"A": 0.13, "C": 0.14}, "many": {"A": 0.09, "C": 0.04}}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, dict[int, Path]]]]:
    folder = tmp_path_factory.mktemp("leads")
    truth = truth_of()
    annotations = truth.write(folder / "truth.json")
    files: dict[str, dict[str, dict[int, Path]]] = {}
    for amount, groups in SPREADS.items():
        for group, spread in groups.items():
            for seed in SEEDS:
                path = folder / f"{amount}-{group}-{seed}.json"
                number = 10 * seed + (group == "C") + 100 * (amount == "many")
                write_rows(path, found_in(truth, spread=spread, number=number))
                files.setdefault(amount, {}).setdefault(group, {})[seed] = path
    return annotations, files


def test_a_lead_is_the_difference_of_a_comparison_on_the_same_draws(written) -> None:
    annotations, files = written
    leads = compare_leads(annotations, files, "A", resamples=200)
    for lead in leads.leads:
        of_amount = {group: files[lead.amount][group] for group in ("C", "A")}
        (pair,) = compare(annotations, of_amount, resamples=200).pairs
        assert lead.difference is not None
        assert lead.difference.value == pytest.approx(pair.difference.value, abs=1e-12)
        assert lead.difference.low == pytest.approx(pair.difference.low, abs=1e-12)
        assert lead.difference.high == pytest.approx(pair.difference.high, abs=1e-12)
        assert lead.seeds == SEEDS
    assert [lead.amount for lead in leads.leads] == ["few", "many"]


def test_the_change_is_the_last_lead_less_the_first_and_turns_with_the_order(written) -> None:
    annotations, files = written
    leads = compare_leads(annotations, files, "A", resamples=200)
    few, many = (lead.difference for lead in leads.leads)
    (change,) = leads.changes
    assert few is not None
    assert many is not None
    assert change.difference is not None
    assert change.difference.value == pytest.approx(many.value - few.value, abs=1e-12)
    assert change.difference.value > 0
    backwards = {"many": files["many"], "few": files["few"]}
    (turned,) = compare_leads(annotations, backwards, "A", resamples=200).changes
    assert turned.difference is not None
    assert turned.difference.value == pytest.approx(-change.difference.value, abs=1e-12)
    assert turned.difference.low == pytest.approx(-change.difference.high, abs=1e-12)


def test_equal_experiments_show_that_the_draws_are_paired(written) -> None:
    """Unpaired, the interval of the change would be wider than that of either lead, and never of no width."""
    annotations, files = written
    same = {"few": files["few"], "many": files["few"]}
    (change,) = compare_leads(annotations, same, "A", resamples=200).changes
    assert change.difference is not None
    assert (change.difference.value, change.difference.low, change.difference.high) == (0.0, 0.0, 0.0)
    assert change.p_holm == 1.0
    assert not change.is_shown


def test_two_seeds_carry_no_claim_and_seeds_are_paired_by_number(written) -> None:
    annotations, files = written
    two = {**files, "many": {group: {s: paths[s] for s in (1, 2)} for group, paths in files["many"].items()}}
    (change,) = compare_leads(annotations, two, "A", resamples=200).changes
    assert change.seeds == (1, 2)
    assert not change.carries_claim
    apart = {**files, "many": {group: {7: paths[0]} for group, paths in files["many"].items()}}
    (change,) = compare_leads(annotations, apart, "A", resamples=200).changes
    assert (change.seeds, change.difference) == ((), None)


def test_p_values_of_changes_are_corrected_for_their_number(written) -> None:
    annotations, files = written
    (alone,) = compare_leads(annotations, files, "A", resamples=200).changes
    more = {amount: {**groups, "D": groups["C"]} for amount, groups in files.items()}
    corrected = compare_leads(annotations, more, "A", resamples=200).changes
    assert [change.group for change in corrected] == ["C", "D"]
    assert corrected[0].p_holm == pytest.approx(min(1.0, 2 * alone.p_holm))


def test_a_reference_that_is_nowhere_is_refused(written) -> None:
    annotations, files = written
    with pytest.raises(ComparisonError, match="'Z'"):
        compare_leads(annotations, files, "Z", resamples=200)
