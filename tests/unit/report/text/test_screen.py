"""The report on one screen: few lines of few letters, whatever an experiment has."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from coordexp.report.study.study import Study
from coordexp.report.text.screen import screen_lines
from coordexp.statistics.results import Estimate, PairResult

PAGE = Path("runs/tiny/report/report.html")


def shown(study: Study, *, width: int = 100) -> list[str]:
    return screen_lines(study, page=PAGE, again="coordexp report --all", width=width)


def of_groups(study: Study, names: list[str]) -> Study:
    """The runs and numbers of the study's first group under many names, each a little worse than the one before."""
    comparison = study.comparison
    assert comparison is not None
    template, first = comparison.pairs[0], comparison.groups[0]
    runs = [replace(run, group=name) for name in names for run in study.data.groups[first]]
    pairs: list[PairResult] = [
        replace(template, a=a, b=b, difference=Estimate(0.01, -0.01, 0.03))
        for at, a in enumerate(names)
        for b in names[at + 1 :]
    ]
    value = {name: Estimate(0.5 - 0.01 * at, 0.4, 0.6) for at, name in enumerate(names)}
    seeds = dict.fromkeys(names, comparison.seeds[first])
    many = replace(comparison, groups=tuple(names), value=value, seeds=seeds, pairs=tuple(pairs))
    return replace(study, data=replace(study.data, runs=tuple(runs)), comparison=many, decomposition=None)


@pytest.mark.parametrize(("num_groups", "width"), [(1, 80), (12, 100), (30, 200)])
def test_it_is_one_screen(paired: Study, num_groups: int, width: int) -> None:
    names = [f"group {at} of a long name that goes on" for at in range(num_groups)]
    missing = tuple(f"run {at} FAILED at step 7: {'a long reason ' * 20}" for at in range(20))
    study = replace(of_groups(paired, names), missing=missing, verdict="One is better than another. " * 40)
    lines = shown(study, width=width)
    assert len(lines) <= 40
    commands = [line for line in lines if line.startswith(("page:", "all tables:", "all curves:"))]
    assert len(commands) == 3
    assert max(cell_len(line) for line in lines if line not in commands) <= min(width, 100)
    rows = [line for line in lines if "0.5" in line or "0.4" in line]
    assert len([line for line in rows if line.startswith("group ")]) >= min(num_groups, 12)
    assert sum(line.startswith("! ") for line in lines) == 5  # four and how many more


def test_it_says_what_the_tables_say(paired: Study) -> None:
    comparison = paired.comparison
    assert comparison is not None
    best, *_, worst = sorted(comparison.groups, key=lambda group: -comparison.value[group].value)
    lines = shown(paired)
    at = next(i for i, line in enumerate(lines) if line.startswith("group "))
    assert lines[at + 1].split()[0] == best
    assert f"{comparison.value[best].value:.3f}" in lines[at + 1]
    pair = next(pair for pair in comparison.pairs if {pair.a, pair.b} == {best, worst})
    (row,) = [line for line in lines if line.startswith(f"{best} \u2212 {worst} ")]
    assert f"{math.fabs(pair.difference.value):.3f}" in row


def test_before_anything_is_known_it_says_where_runs_stand(bare: Study) -> None:
    lines = shown(replace(bare, missing=("A-s0 FAILED at step 3: no memory",)))
    assert lines[0].startswith("Experiment tiny: ")
    assert any(line.startswith("! A-s0 FAILED") for line in lines)


def test_what_a_merge_lost_is_a_warning(paired: Study) -> None:
    lost = "merging in bfloat16 loses 15% of what training changed in the logits"
    runs = (replace(paired.data.runs[0], message=lost), *paired.data.runs[1:])
    assert any(lost in line for line in shown(replace(paired, data=replace(paired.data, runs=runs))))
