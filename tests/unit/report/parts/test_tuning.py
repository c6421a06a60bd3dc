"""The part of a report on the tuning: what was chosen, where it lies, and AP on both splits."""

import shutil
from pathlib import Path

import pytest

from coordexp.config.schema.search import Parameter
from coordexp.report.make_study import make_study
from coordexp.report.page.page import render_page
from coordexp.report.parts.tuning import ap_table, chosen_table, edge_warnings, trials_table
from coordexp.report.records.artifacts import Artifacts
from coordexp.report.records.load import load_experiment
from coordexp.report.study.inputs import Settings
from coordexp.report.study.study import Study, rendered_parts
from coordexp.report.study.tuned import edge_of, tuning_lead
from coordexp.report.text.heads import meaning
from coordexp.report.text.records import to_json
from coordexp.report.text.render import to_markdown
from coordexp.runs.folder import ExperimentFolder
from coordexp.search.record import TriedPoint, TunedGroup, TuningRecord

RATE = "training.learning_rate"
WEIGHT = "objective.lambda_coord"
RATES = Parameter(values=(0.001, 0.003, 0.01))
WEIGHTS = Parameter(low=0.1, high=10.0, scale="log")


def tried(name: str, point: dict[str, float], ap: float | None, state: str = "finished") -> TriedPoint:
    return TriedPoint.model_validate({"name": name, "point": point, "ap": ap, "state": state, "step": 90})


def make_record(*groups: str) -> TuningRecord:
    """Return a tuning in which A keeps its own rate, and the others choose an end of both spaces."""
    tuned: dict[str, TunedGroup] = {}
    for group in groups:
        own = {RATE: 0.003} if group == "A" else {RATE: 0.003, WEIGHT: 1.0}
        other = {RATE: 0.01} if group == "A" else {RATE: 0.001, WEIGHT: 9.5}
        aps = (0.4, 0.3) if group == "A" else (0.2, 0.35)
        space = {RATE: RATES} if group == "A" else {RATE: RATES, WEIGHT: WEIGHTS}
        trials = [
            tried(f"{group}.t000", own, aps[0]),
            tried(f"{group}.t001", other, aps[1]),
            tried(f"{group}.t002", other, None, "failed"),
            tried(f"{group}.t003", other, 0.1, "pruned"),
        ]
        tuned[group] = TunedGroup(
            reading="argmax",
            space=space,
            trials=tuple(trials),
            chosen=f"{group}.t000" if group == "A" else f"{group}.t001",
        )
    return TuningRecord(
        method="random", num_trials=4, num_steps=90, seed=1000, num_train=21, num_val=3, num_excluded=0, unit_by="clip",
        split_hash="0", groups=tuned,
    )  # fmt: skip


@pytest.fixture(scope="module")
def tuned(paired_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    runs_dir = tmp_path_factory.mktemp("tuned")
    data = load_experiment(f"sqlite:///{paired_dir}/mlflow.db", "paired", runs_dir=paired_dir)
    folder = ExperimentFolder(paired_dir / "paired").tuning
    make_record(*data.groups).write(folder.record)
    artifacts = Artifacts(data, cache=runs_dir / "cache", runs_dir=paired_dir)
    try:
        return make_study(data, artifacts, Settings(resamples=60, num_pictures=2))
    finally:
        shutil.rmtree(folder.path)  # other tests look at the same folder


def test_the_verdict_begins_with_the_budget_of_the_tuning(tuned: Study):
    assert tuned.verdict.startswith("Each group tuned by 4 trials of 90 steps.")
    record = make_record("A", "C")
    assert tuning_lead(record, ["A", "C"]) == "Each group tuned by 4 trials of 90 steps."
    assert "not tuned: zero-shot" in tuning_lead(record, ["A", "C", "zero-shot"])
    assert tuning_lead(record, ["other"]) == ""


def test_a_choice_at_an_edge_is_a_warning_with_the_key():
    record = make_record("A", "C")
    warnings = edge_warnings(record.groups)
    assert [RATE in warnings[0], WEIGHT in warnings[1]] == [True, True]
    assert all(sentence.startswith("C:") for sentence in warnings)
    assert [row.cells[-1] for row in chosen_table(record.groups).rows] == ["-", "lower end", "upper end"]


@pytest.mark.parametrize(
    ("parameter", "value", "edge"),
    [
        (RATES, 0.003, ""),
        (RATES, 0.001, "lower end"),
        (RATES, 0.02, "outside"),
        (WEIGHTS, 1.0, ""),
        (WEIGHTS, 0.12, "lower end"),
        (WEIGHTS, 9.0, "upper end"),
        (WEIGHTS, 5.0, ""),  # a tenth of the range in decades, not in weights
        (Parameter(low=0.0, high=1.0), 0.95, "upper end"),
        (Parameter(values=(2,)), 2, ""),
    ],
)
def test_where_a_value_lies_in_its_space(parameter: Parameter, value: float, edge: str):
    assert edge_of(parameter, value) == edge


def test_ap_where_it_was_chosen_stands_beside_ap_on_validation(tuned: Study):
    assert tuned.comparison is not None
    record = make_record(*tuned.data.groups)
    rows = {row.cells[0]: row.cells for row in ap_table(record, record.groups, tuned).rows}
    assert rows["A"][1:4] == ("0.400", "0.400", "+0.000")
    assert rows["C"][1:4] == ("0.200", "0.350", "+0.150")
    assert rows["C"][4] == f"{tuned.comparison.value['C'].value:.3f}"


def test_every_trial_is_listed_and_an_ap_before_the_last_step_is_in_parentheses():
    rows = [row.cells for row in trials_table(make_record("C").groups).rows]
    assert [cells[3] for cells in rows] == ["0.2000", "0.3500", "-", "(0.1000)"]
    assert [cells[-1] for cells in rows] == ["", "chosen", "", ""]


def test_every_format_has_the_tuning_and_a_figure_a_key_of_each_group(tuned: Study):
    ((part, shown),) = [item for item in rendered_parts(tuned) if item[0].name == "tuning"]
    num_keys = sum(len(group.space) for group in make_record(*tuned.data.groups).groups.values())
    assert [chart.draw is not None for chart in shown.charts] == [True] * num_keys
    assert any("failed" in sentence for sentence in shown.sentences)
    assert any("clip" in sentence for sentence in shown.sentences)
    heads = {head for table in shown.tables for head in table.columns}
    assert {head for head in heads if not meaning(head)} <= {
        *("group", "key", "chosen", "trial", "point", "AP", "steps", "state", "decision", "95 % interval"),
    }
    page, text, record = render_page(tuned), to_markdown(tuned), to_json(tuned)
    for written in (page, text, record):
        assert "lambda_coord" in written
        assert "C.t001" in written
    assert part.name == "tuning"


def test_a_study_without_tuning_has_no_such_part(paired: Study):
    assert [part.name for part, _ in rendered_parts(paired) if part.name == "tuning"] == []
    assert "tuned by" not in paired.verdict
