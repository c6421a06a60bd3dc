"""A new loss term is one file: named in YAML it trains, is logged and tabled, and its knobs tell runs apart."""

import runpy

import pytest
import torch

from coordexp.config import load_config
from coordexp.errors import ConfigError
from coordexp.losses.term import UNITS
from coordexp.losses.terms import loss_terms
from coordexp.metrics import find_metric
from coordexp.train.loop.measures import RunningAverages
from coordexp.train.loop.run_log import means_to_metrics
from coordexp.train.setup.weighted_terms import build_criterion, weighted_terms
from tests.support.terms import EXAMPLE, EXAMPLE_YAML, ROOT, count_units, drop


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load the shipped defaults with some YAML, by default the page's, and overrides."""
    monkeypatch.chdir(ROOT)

    def load(yaml=EXAMPLE_YAML, *overrides):
        path = tmp_path / "experiment.yaml"
        path.write_text(f"extends: {ROOT / 'experiments' / 'base.yaml'}\n{yaml}", encoding="utf-8")
        return load_config(path, overrides)

    return load


@pytest.fixture
def example(terms_dir):
    """The page's own example, dropped in after the package was looked through."""
    loss_terms()
    drop(terms_dir, "bin_error", EXAMPLE)


def _extra(config):
    return {weighted.term.name: weighted for weighted in weighted_terms(config)[7:]}


# A new term


@pytest.mark.usefixtures("example")
def test_a_file_named_in_yaml_trains_and_is_logged(load, make_case):
    config = load()
    criterion = build_criterion(config)
    weighted = _extra(config)["bin_error"]
    assert (weighted.weight, weighted.term.model_dump()) == (0.5, {"power": 1.5})

    case = make_case(num_boxes=2, num_loose=1, num_text=3)
    optimizer = torch.optim.SGD([case.logits], lr=50.0)
    totals = []
    for _ in range(5):
        inputs = case.inputs
        counts = count_units(inputs)
        total, sums = criterion(inputs, counts)
        totals.append(total.item())
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    assert totals == sorted(totals, reverse=True)
    shares = criterion.shares(inputs, counts)
    assert shares["bin_error"].item() == pytest.approx(0.5 * sums["bin_error"].item() / 9)

    averages = RunningAverages()
    averages.add_terms(criterion, sums, count_units(inputs))
    means, _ = averages.read()
    for split in ("train", "eval"):
        metrics = means_to_metrics(means, split=split, config=config, criterion=criterion)
        assert metrics[f"{split}_extra/bin_error"] == pytest.approx(sums["bin_error"].item() / 9)
        assert metrics[f"{split}_total_loss"] == pytest.approx(total.item())
        assert find_metric(f"{split}_extra/bin_error")


@pytest.mark.usefixtures("example")
def test_it_stands_in_the_table_of_the_page():
    line = runpy.run_path(str(ROOT / "docs" / "tables.py"))["term_row"](loss_terms()["bin_error"])
    cells = [cell.strip() for cell in line.replace("\\|", "/").split("|")[1:-1]]
    assert cells[0] == "`bin_error`"
    assert cells[1:3] == ["sum over coord rows of `/c - b/^power`", "`coord_tokens`"]
    assert cells[3].startswith("`power: 2.0` (1: every error pulls alike")
    assert cells[4] == "`train_extra/bin_error`"


def test_without_the_file_the_same_yaml_is_one_sentence(load):
    with pytest.raises(ConfigError, match=r"objective\.extra\.bin_error.*smooth_l1"):
        weighted_terms(load())


@pytest.mark.usefixtures("example")
def test_a_weight_of_zero_only_logs(load, make_case):
    inputs = make_case().inputs
    total, sums = build_criterion(load("objective: {extra: {bin_error: 0.0}}\n"))(inputs, torch.ones(len(UNITS)))
    plain, _ = build_criterion(load(""))(inputs, torch.ones(len(UNITS)))
    assert torch.equal(total, plain)
    assert sums["bin_error"] > 0


def test_the_shipped_extra_terms_are_found_by_name(load):
    text = "objective: {extra: {coord_slice_ce: 0.25, text_gate: 0.5, smooth_l1: {weight: 2, beta: 0.2}}}\n"
    found = {name: (one.weight, one.term.model_dump()) for name, one in _extra(load(text)).items()}
    assert found == {"coord_slice_ce": (0.25, {}), "text_gate": (0.5, {}), "smooth_l1": (2.0, {"beta": 0.2})}


@pytest.mark.parametrize(
    ("extra", "facts"),
    [
        ("{smoth_l1: 1}", r"objective\.extra\.smoth_l1.*smooth_l1"),
        ("{w1: 1}", r"objective\.extra\.w1\b"),
        (
            "{smooth_l1: {weight: 1, bta: 0.2}}",
            r"objective\.extra\.smooth_l1\.bta.*0\.2.*weight, beta",
        ),
        ("{text_gate: {weight: 1, beta: 2}}", r"objective\.extra\.text_gate\.beta.*2.*weight"),
        ("{smooth_l1: {weight: 1, beta: wide}}", r"objective\.extra\.smooth_l1\.beta.*'wide'.*number"),
    ],
)
def test_a_wrong_name_or_knob_is_one_sentence(load, extra, facts):
    config = load(f"objective: {{extra: {extra}}}\n")
    with pytest.raises(ConfigError, match=facts) as raised:
        weighted_terms(config)
    assert "\n" not in str(raised.value)
