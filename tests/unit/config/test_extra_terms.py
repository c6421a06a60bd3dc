"""``objective.extra``: a bare number is the weight, a mapping adds knobs, and laying one over the other keeps both."""

from pathlib import Path

import pytest

from coordexp.config import load_config, to_yaml
from coordexp.errors import ConfigError
from coordexp.runs.plan import RunPlan


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def _load(text: str, *overrides: str):
    Path("config.yaml").write_text(text, encoding="utf-8")
    return load_config("config.yaml", overrides)


def _smooth(config):
    term = config.objective.extra["smooth"]
    return term.weight, term.knobs


def test_a_number_and_a_mapping_of_the_weight_are_the_same_configuration():
    number, mapping = (
        _load("objective: {extra: {smooth: 0.5}}\n"),
        _load("objective: {extra: {smooth: {weight: 0.5}}}\n"),
    )
    assert number == mapping
    assert to_yaml(number) == to_yaml(mapping)
    assert _smooth(number) == (0.5, {})


def test_knobs_travel_to_workers_and_back():
    config = _load("objective: {extra: {smooth: {weight: 1, beta: 0.1, form: wide, on: true, cut: null}}}\n")
    knobs = {"beta": 0.1, "form": "wide", "on": True, "cut": None}
    assert _smooth(config) == (1.0, knobs)
    plan = RunPlan(config.run("A", 0))
    assert RunPlan.from_json(plan.to_json()) == plan
    Path("again.yaml").write_text(to_yaml(config), encoding="utf-8")
    assert load_config("again.yaml") == config


@pytest.mark.parametrize("start", ["0.5", "{weight: 0.5, beta: 0.2}"])
@pytest.mark.parametrize(
    ("overrides", "weight", "beta"),
    [
        ([], 0.5, None),
        (["objective.extra.smooth.beta=0.3"], 0.5, 0.3),
        (["objective.extra.smooth=2"], 2.0, None),
        (["objective.extra={smooth: 2}"], 2.0, None),
        (["objective.extra.smooth.beta=0.3", "objective.extra.smooth=2"], 2.0, 0.3),
        (["objective.extra.smooth={weight: 2, beta: 0.3}"], 2.0, 0.3),
    ],
)
def test_an_override_of_the_weight_keeps_the_knobs_and_the_other_way_round(start, overrides, weight, beta):
    found = _smooth(_load(f"objective: {{extra: {{smooth: {start}}}}}\n", *overrides))
    kept = 0.2 if beta is None and "beta" in start else beta
    assert found == (weight, {} if kept is None else {"beta": kept})


def test_a_term_can_come_from_the_command_line_alone():
    assert _smooth(_load("{}\n", "objective.extra.smooth=0.5", "objective.extra.smooth.beta=0.2")) == (
        0.5,
        {"beta": 0.2},
    )


def test_a_file_and_a_group_change_what_they_name():
    Path("base.yaml").write_text("objective: {extra: {smooth: 0.5, other: {weight: 1, at: 3}}}\n", encoding="utf-8")
    Path("groups").mkdir()
    Path("groups/G.yaml").write_text("objective: {extra: {smooth: 4, other: {at: 5}}}\n", encoding="utf-8")
    config = _load(
        "extends: base.yaml\nobjective: {extra: {smooth: {beta: 0.1}}}\nablation: {groups: [G]}\n",
        "ablation.groups.G.objective.extra.other=2",
    )
    assert _smooth(config) == (0.5, {"beta": 0.1})
    extra = config.run("G", 0).objective.extra
    assert {name: (term.weight, term.knobs) for name, term in extra.items()} == {
        "smooth": (4.0, {"beta": 0.1}),
        "other": (2.0, {"at": 5}),
    }


@pytest.mark.parametrize(
    ("value", "key", "shown"),
    [
        ("many", "objective.extra.smooth.weight", "'many'"),
        ("-1", "objective.extra.smooth.weight", "-1"),
        (".nan", "objective.extra.smooth.weight", "nan"),
        ("{beta: 0.1}", "objective.extra.smooth.weight", ""),
        ("{weight: 1, beta: [1]}", "objective.extra.smooth", r"beta: .*\[1\]"),
        ("{weight: 1, beta: .inf}", "objective.extra.smooth", "beta: .*inf"),
    ],
)
def test_what_is_no_weight_or_no_knob_is_named_with_its_line(value, key, shown):
    with pytest.raises(ConfigError, match=rf"config\.yaml:[23]: {key}\b.*{shown}"):
        _load(f"objective:\n  extra:\n    smooth: {value}\n")
