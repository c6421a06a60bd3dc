"""The report on one screen: few lines of few letters, whatever an experiment has."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from coordexp.report.study.study import Study
from coordexp.report.text.notes import notes
from coordexp.report.text.screen import screen_lines, warnings, wrapped
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
    marked = [line for line in lines if line.startswith("! ")]
    num_more = int(marked[-1].split()[1])
    assert len(marked) - 1 + num_more == len(warnings(study)) >= 20, "shown and counted"


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


@pytest.mark.parametrize("width", range(60, 201, 20))
def test_no_warning_and_no_number_is_cut_at_any_width(paired: Study, width: int) -> None:
    sentences = [f"run {at} FAILED at step 7: {'some reason or other ' * 9}end-of-{at}" for at in range(3)]
    verdict = "First sentence of the verdict about A. " + "Then much more is said about it. " * 30
    lines = shown(replace(paired, missing=tuple(sentences), verdict=verdict), width=width)
    text = " ".join(" ".join(lines).split())
    num_whole = sum(" ".join(sentence.split()) in text for sentence in sentences)
    assert num_whole == sum(line.startswith("! run ") for line in lines) > 0
    assert " ..." not in text, "\n".join(lines)
    commands = ("page:", "all tables:", "all curves:")
    assert max(cell_len(line) for line in lines if not line.startswith(commands)) <= min(width, 100)
    assert paired.comparison is not None
    for group in paired.comparison.groups:
        value = paired.comparison.value[group]
        row = next(line for line in lines if line.startswith(f"{group} ") and "\u2212 " not in line)
        assert f"{value.value:.3f}" in row
        assert f"{value.high:.3f}]" in row


def test_a_sentence_of_wide_letters_fits_and_a_path_stays_whole() -> None:
    path = "/data/" + "long/" * 30 + "instances_val.json"
    circles = "\u8d64\u3044\u5186 " * 20
    lines = wrapped(f"\u8b66\u544a {circles}{path} is missing", 60, first="! ", others="  ")
    assert path in {line.strip() for line in lines}
    assert max(cell_len(line) for line in lines if path not in line) <= 60
    assert lines[0].startswith("! ")
    assert all(line.startswith("  ") for line in lines[1:])
    assert wrapped("", 60, first="! ") == ["! "]


LIMITS = {
    "final/train_boxes": 1600.0, "final/val_boxes": 400.0, "final/boxes_over_max_objects": 30.0,
    "final/boxes_over_max_length": 1500.0, "final/boxes_over_max_new_tokens": 4.0,
}  # fmt: skip
KEYS = {"data.max_objects": "30", "data.max_length": "512", "evaluation.max_new_tokens": "300"}


def test_boxes_that_a_limit_took_away_are_said_by_group(bare: Study) -> None:
    def with_limits(**metrics: dict[str, float]) -> Study:
        runs = [
            replace(run, params={**run.params, **KEYS}, metrics={**run.metrics, **metrics.get(run.group, {})})
            for run in bare.data.runs
        ]
        return replace(bare, data=replace(bare.data, runs=tuple(runs)))

    study = with_limits(A=LIMITS, B=LIMITS, C=LIMITS)
    learnt, written = [note for note in notes(study.data) if "boxes" in note and "raise" in note]
    assert learnt.startswith("WARNING: of the training boxes")
    for fact in ("1,530 of 1,600", "95.6 %", "data.max_length 512", "data.max_objects 30"):
        assert fact in learnt
    assert not written.startswith("WARNING"), "one of a hundred is a note"
    assert "4 of 400" in written
    on_screen = " ".join(" ".join(shown(replace(study, missing=()))).split())
    assert "1,530 of 1,600" in on_screen
    assert "4 of 400" not in on_screen
    (of_one,) = [
        note for note in notes(with_limits(B=LIMITS | {"final/boxes_over_max_new_tokens": 0.0}).data) if "raise" in note
    ]
    assert of_one.startswith("WARNING: B: ")
    assert not [note for note in notes(bare.data) if "max_length" in note], "a run that did not count says nothing"
