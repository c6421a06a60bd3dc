"""Runs that differ in more than the declared factor: each planted difference is caught, or shown where allowed."""

import json
import re

import pytest

from coordexp.config import load_config
from coordexp.data.sampler import LengthBucketSampler
from coordexp.errors import ComparisonError, ConfigError
from tests.support.ablation import GEOMETRY, StandIn, make_config, run

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("unreported")]

PLANTED = {
    "data.prompt": {"data": {"prompt": "List the objects."}},
    "training.global_batch_size": {"training": {"per_device_batch_size": 2}},
    "data.ordering": {"data": {"ordering": "random"}},
    "data.length_buckets": {"data": {"length_buckets": False}},
    "data.max_pixels": {"data": {"max_pixels": 4096}},
    "evaluation.score": {"evaluation": {"score": "coord"}},
}


@pytest.mark.parametrize("key", PLANTED)
def test_a_planted_difference_is_refused_before_anything_runs(base, runs_dir, key):
    config = make_config(base, runs_dir, "planted", ablation={"groups": {"A": {}, "C": GEOMETRY | PLANTED[key]}})
    function = StandIn()
    with pytest.raises(ComparisonError, match=rf"(?s){key} .*--allow-differences"):
        run(config, function)
    assert function.done == []


def test_another_order_of_the_data_is_refused_though_no_key_says_so(base, runs_dir, monkeypatch):
    # Runs finished under one order; the sampler then changes, and nothing in the configuration does.
    config = make_config(base, runs_dir, "order", data={"shapes": {"num_train": 8, "num_val": 3}})
    first = make_config(base, runs_dir, "order", **{"ablation": {"groups": {"A": {}}}, "data": dict(config.data)})
    assert run(first, StandIn())[0] == 0
    original = LengthBucketSampler.__iter__
    monkeypatch.setattr(LengthBucketSampler, "__iter__", lambda self: iter(list(original(self))[::-1]))
    function = StandIn()
    with pytest.raises(ComparisonError, match=r"\n  tokens  "):
        run(config, function)
    assert function.done == []


def test_the_same_without_a_difference_runs(base, runs_dir):
    assert run(make_config(base, runs_dir, "equal"), StandIn())[0] == 0


def test_an_allowed_difference_is_shown_and_runs(base, runs_dir):
    groups = {"A": {}, "C": GEOMETRY | PLANTED["evaluation.score"]}
    config = make_config(base, runs_dir, "allowed", ablation={"groups": groups, "allow_differences": True})
    function = StandIn()
    code, text = run(config, function)
    assert (code, function.done) == (0, ["A", "C"])
    assert re.search(r'evaluation\.score +A-s0: "coord_desc" +C-s0: "coord"', text)
    stored = json.loads((runs_dir / "allowed" / "C-s0" / "fingerprint.json").read_text())
    assert stored["config"]["evaluation"]["score"] == "coord"


@pytest.mark.parametrize("allowed", [False, True])
def test_a_group_file_may_leave_the_factor_only_where_it_is_said(tmp_path, allowed):
    path = tmp_path / "experiment.yaml"
    path.write_text("ablation: {groups: {A: {}, X: {data: {prompt: Name them.}}}}\n")
    overrides = ["ablation.allow_differences=true"] if allowed else []
    if allowed:
        assert load_config(path, overrides).ablation.groups["X"] == {"data": {"prompt": "Name them."}}
    else:
        with pytest.raises(ConfigError, match=r"data\.prompt.*ablation\.factor"):
            load_config(path, overrides)
