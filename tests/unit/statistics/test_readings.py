"""Several readings of one experiment: each as if it were alone, nothing computed twice, and what the sentence says."""

from dataclasses import replace
from pathlib import Path

import pytest

from coordexp.statistics import Comparison, Estimate, PairResult, compare, compare_readings, reading_sentence
from coordexp.statistics import comparison as module
from coordexp.statistics.readings import READINGS, WORDS, reads
from tests.support.detections import write_rows
from tests.unit.statistics.test_comparison import found_in, of, truth_of


@pytest.fixture
def annotations(tmp_path: Path) -> Path:
    return truth_of().write(tmp_path / "gt.json")


@pytest.fixture
def file_of(tmp_path: Path):
    def write(spread: float, name: str) -> Path:
        return write_rows(tmp_path / f"{name}.json", found_in(truth_of(), spread=spread, number=0))

    return write


def test_each_reading_is_what_it_is_alone_and_no_file_or_pair_is_done_twice(annotations, file_of, monkeypatch) -> None:
    a, a_mean, c, c_mode = file_of(0.05, "a"), file_of(0.07, "a_mean"), file_of(0.02, "c"), file_of(0.04, "c_mode")
    a_free = file_of(0.05, "a_free")  # the same bytes as a: what a model writes without the grammar, too
    readings = {
        "own": {"A": {0: a}, "C": {0: c}},
        "expected": {"A": {0: a_mean}, "C": {0: c}},
        "argmax": {"A": {0: a}, "C": {0: c_mode}},
        "free": {"A": {0: a_free}, "C": {0: c}},
    }
    alone = {name: compare(annotations, files, resamples=40) for name, files in readings.items()}
    matched, tested = [], []
    match, test = module.read_matches, module.swap_test
    monkeypatch.setattr(module, "read_matches", lambda *x, **y: (matched.extend(x[1]), match(*x, **y))[1])
    monkeypatch.setattr(module, "swap_test", lambda *x, **y: (tested.append(x), test(*x, **y))[1])
    calls: list[tuple[int, int]] = []
    found = compare_readings(
        annotations, readings, resamples=40, on_progress=lambda done, all_of: calls.append((done, all_of))
    )
    assert found == alone
    assert found["own"] == found["free"] != found["expected"]
    assert (len(matched), len(tested)) == (4, 3)
    assert calls[-1] == (160, 160)


def test_what_a_reading_takes() -> None:
    assert [reads(name, "argmax") for name in READINGS] == [
        ("constrained", "argmax"),
        ("constrained", "expected"),
        ("constrained", "argmax"),
        ("free", "argmax"),
    ]


def pair(p: float, difference: float) -> PairResult:
    return PairResult("A", "C", Estimate(difference, difference - 0.01, difference + 0.01), p, p, 0.005, None, 0.014)


def sentence_of(**found: tuple[float, float]) -> str:
    comparisons: dict[str, Comparison] = {
        name: of({"A": 0.35, "C": 0.35 - difference}, pair(p, difference)) for name, (p, difference) in found.items()
    }
    return reading_sentence(comparisons)


def readings_in(clause: str) -> list[str]:
    """Return the readings that a clause names, in their order."""
    if "all four" in clause:
        return ["all four"]
    return [name for name in READINGS if WORDS[name] in clause]


def test_the_sentence_names_the_readings_under_which_the_verdict_holds() -> None:
    lower, unsure, higher = (0.001, -0.06), (0.3, -0.01), (0.001, 0.04)
    everywhere = sentence_of(own=lower, expected=lower, argmax=lower, free=lower)
    assert everywhere == sentence_of(own=unsure, expected=unsure, argmax=unsure, free=unsure)
    assert readings_in(everywhere) == ["all four"]
    # The readings under which it holds stand before "but not", the others behind it with their pairs.
    holds, not_there = sentence_of(own=lower, expected=unsure, argmax=lower, free=lower).split("but not")
    assert readings_in(holds) == ["own", "argmax", "free"]
    assert readings_in(not_there) == ["expected"]
    assert "C - A = +0.0100, p = 0.3" in not_there
    holds, not_there = sentence_of(own=lower, expected=higher, argmax=lower, free=unsure).split("but not")
    assert readings_in(holds) == ["own", "argmax"]
    assert readings_in(not_there) == ["expected", "free"]
    assert not_there.index("C - A = -0.0400, p = 0.001") < not_there.index("C - A = +0.0100, p = 0.3")
    _, not_there = sentence_of(own=unsure, expected=unsure, argmax=unsure, free=lower).split("but not")
    assert readings_in(not_there) == ["free"]
    holds, unknown = sentence_of(own=lower, expected=lower, argmax=lower).split(";")
    assert readings_in(holds) == ["own", "expected", "argmax"]
    assert readings_in(unknown) == ["free"]
    holds, unknown = sentence_of(own=lower).split(";")
    assert readings_in(holds) == ["own"]
    assert readings_in(unknown) == ["expected", "argmax", "free"]
    assert reading_sentence({"own": replace(of({"A": 0.3}), pairs=())}) == ""


def test_a_pair_without_the_best_group_decides_nothing() -> None:
    def three(p_of_others: float) -> Comparison:
        pairs = (pair(0.001, 0.1), replace(pair(0.001, 0.1), b="D"), replace(pair(p_of_others, 0.03), a="C", b="D"))
        return of({"A": 0.4, "C": 0.3, "D": 0.28}, *pairs)

    readings = {name: three(0.001) for name in READINGS} | {"free": three(0.9)}
    assert readings_in(reading_sentence(readings)) == ["all four"]
