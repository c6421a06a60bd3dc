"""Terms as files: one dropped into ``losses/`` and named in YAML works, with no other file edited."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from coordexp.config import load_config
from coordexp.errors import ConfigError
from coordexp.losses.criterion import UNITS
from coordexp.losses.term import find_term, term
from coordexp.metrics import find_metric
from coordexp.train.batch import by_unit, own_counts
from coordexp.train.loop.averages import Meter
from coordexp.train.loop.metric_rows import means_to_metrics
from coordexp.train.setup.objective import build_criterion
from tests.unit.losses.term_support import EXAMPLE, EXAMPLE_YAML, ROOT, drop  # the page's own example is dropped in


def _config(tmp_path, monkeypatch, yaml=EXAMPLE_YAML):
    monkeypatch.chdir(ROOT)
    path = tmp_path / "experiment.yaml"
    path.write_text(f"extends: {ROOT / 'experiments' / 'base.yaml'}\n{yaml}", encoding="utf-8")
    return load_config(path)


# A new term


def test_a_file_named_in_yaml_trains_and_is_logged(losses_dir, tmp_path, monkeypatch, make_case):
    find_term("gate")  # the package was scanned before the file is there
    drop(losses_dir, "my_term", EXAMPLE)
    config = _config(tmp_path, monkeypatch)
    criterion = build_criterion(config)
    weights = {weighted.term.name: weighted.weight for weighted in criterion.terms}
    assert weights["bin_mse"] == 0.5

    case = make_case(num_boxes=2, num_loose=1, num_text=3)
    optimizer = torch.optim.SGD([case.logits], lr=50.0)
    totals = []
    for _ in range(5):
        inputs = case.inputs
        counts = by_unit(torch.tensor([float(inputs.num_units(unit)) for unit in UNITS]))
        total, sums = criterion(inputs, counts)
        totals.append(total.item())
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    assert totals == sorted(totals, reverse=True)
    shares = criterion.shares(inputs, counts)
    assert shares["bin_mse"].item() == pytest.approx(0.5 * sums["bin_mse"].item() / 9)

    meter = Meter()
    meter.add_terms(criterion, sums, own_counts(inputs))
    means, _ = meter.read()
    for prefix in ("train", "eval"):
        metrics = means_to_metrics(means, prefix=prefix, config=config, criterion=criterion)
        assert metrics[f"{prefix}_extra/bin_mse"] == pytest.approx(sums["bin_mse"].item() / 9)
        assert metrics[f"{prefix}_total_loss"] == pytest.approx(total.item())
        assert find_metric(f"{prefix}_extra/bin_mse")


def test_its_gradient_alone(losses_dir, make_case):
    drop(losses_dir, "my_term", EXAMPLE)
    case = make_case(num_boxes=1, num_loose=0)
    gradient = case.gradient(find_term("bin_mse"))
    assert gradient[case.is_coord][:, case.coord].any()
    gradient[case.is_coord, case.coord] = 0
    assert not gradient.any()


def test_without_the_file_the_same_yaml_is_one_sentence(tmp_path, monkeypatch):
    config = _config(tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match=r"objective.extra: no loss term 'bin_mse'; known terms: box_giou, box_l1, "):
        build_criterion(config)


def test_a_weight_of_zero_only_logs(losses_dir, tmp_path, monkeypatch, make_case):
    drop(losses_dir, "my_term", EXAMPLE)
    config = _config(tmp_path, monkeypatch, "objective: {extra: {bin_mse: 0.0}}\n")
    inputs = make_case().inputs
    counts = by_unit(torch.ones(4))
    total, sums = build_criterion(config)(inputs, counts)
    plain, _ = build_criterion(_config(tmp_path, monkeypatch, ""))(inputs, counts)
    assert torch.equal(total, plain)
    assert sums["bin_mse"] > 0


def test_the_two_shipped_extra_terms_are_found_by_name(tmp_path, monkeypatch):
    config = _config(tmp_path, monkeypatch, "objective: {extra: {coord_slice_ce: 0.25, text_gate: 0.5}}\n")
    weights = {weighted.term.name: weighted.weight for weighted in build_criterion(config).terms}
    assert (weights["coord_slice_ce"], weights["text_gate"]) == (0.25, 0.5)


@pytest.mark.slow
def test_a_file_in_a_copy_of_the_package_trains_from_the_command_line(tmp_path):
    """The whole way, in its own process: one new file, one line of YAML, ``train``, and the metric is there."""
    shutil.copytree(ROOT / "coordexp", tmp_path / "coordexp", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments")
    drop(tmp_path / "coordexp" / "losses", "my_term", EXAMPLE)
    small = "data.shapes.num_train=8 data.shapes.num_val=4 training.max_steps=2 training.logging_steps=1"
    small += " training.per_device_batch_size=4 evaluation.max_new_tokens=16 evaluation.decoding=[constrained]"
    command = f"{sys.executable} -m coordexp train --config experiments/tiny.yaml --group B"
    done = subprocess.run(
        [*command.split(), "objective.extra={bin_mse: 0.5}", *small.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("runs/*/*/metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for name in ("train_extra/bin_mse", "eval_extra/bin_mse"):
        assert any(row["metrics"].get(name, 0) > 0 for row in rows), name


def test_a_named_term_cannot_be_an_extra_one(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="objective.extra.w1: this term has a switch of its own"):
        build_criterion(_config(tmp_path, monkeypatch, "objective: {extra: {w1: 1.0}}\n"))


# The parts


def test_units_are_counted_from_shapes(make_case):
    inputs = make_case(num_boxes=2, num_loose=3, num_text=5).inputs
    assert [inputs.num_units(unit) for unit in UNITS] == [16, 5, 11, 2]
    assert {unit: inputs.num_units(unit) for unit in UNITS} == own_counts(inputs)


def test_the_decorated_function_stays_itself(losses_dir):
    def mine(inputs):
        return inputs.log_z_T.sum(), 0

    assert term("mine", unit="tokens")(mine) is mine
    assert find_term("mine").compute.__wrapped__ is mine


def test_a_package_of_its_own_can_be_searched(tmp_path, monkeypatch, losses_dir):
    package = tmp_path / "own_losses"
    package.mkdir()
    drop(package, "__init__", "")
    drop(package, "squares", EXAMPLE.replace("bin_mse", "own_mse"))
    monkeypatch.syspath_prepend(tmp_path)
    assert find_term("own_mse", package="own_losses").unit == "coord_tokens"
    for name in ("own_losses", "own_losses.squares"):
        del sys.modules[name]
