"""Running averages, and the names that means get."""

import pytest
import torch

from coordexp.config.schema import ExperimentConfig
from coordexp.metrics import find_metric
from coordexp.train.loop.measures import P90_NAME, RunningAverages, StepLog
from coordexp.train.loop.run_log import means_to_metrics, train_metrics
from coordexp.train.loop.throughput import FlopCounter
from coordexp.train.setup.weighted_terms import build_criterion

# 1 x 300 + .5 x 30,000 + 2 x 100 + .1 x 5,000 + 3 x 20 = 16,060 operations in 2 seconds.
FLOPS = FlopCounter(1.0, 0.5, 2.0, 0.1, 3.0, peak=80_300.0)


def _means(criterion):
    return {weighted.term.name: float(i + 1) for i, weighted in enumerate(criterion.terms)} | {
        "coord_vocab_mass": 0.5,
        "expected_bin_mae": 3.0,
        "inverted_fraction": 0.0,
    }


def _log(means):
    sums = {
        "num_coord_tokens": 8.0,
        "num_tokens": 20.0,
        "num_images": 4.0,
        "num_sequence_tokens": 300.0,
        "num_sequence_tokens_squared": 30_000.0,
        "num_patches": 100.0,
        "num_patches_squared": 5_000.0,
        "data_wait_seconds": 0.5,
    }
    return StepLog(step=10, means=means, sums=sums, seconds=2.0, grad_norm=1.0, learning_rate=1e-3, epoch=0.5)


def test_a_mean_weighs_units_not_microbatches():
    averages = RunningAverages()
    averages.add("loss", torch.tensor(6.0), 2)
    averages.add("loss", torch.tensor(2.0), 6)
    means, sums = averages.read()
    assert (means["loss"], sums["loss"]) == (1.0, 8.0)
    assert averages.read() == ({}, {})


@pytest.mark.parametrize("prefix", ["train", "eval"])
def test_every_logged_name_is_in_the_registry(prefix):
    config = ExperimentConfig.model_validate({"objective": {"extra": {"text_gate": 0.1}}})
    criterion = build_criterion(config)
    metrics = means_to_metrics(_means(criterion), split=prefix, config=config, criterion=criterion)
    assert {f"{prefix}_{name}_loss" for name in ("total", "text", "coord", "coord_ce")} <= set(metrics)
    log = _log(_means(criterion))
    logged = metrics | train_metrics(log, config=config, criterion=criterion, flops=FLOPS)
    assert [name for name in logged if not find_metric(name)] == []


def test_the_total_weighs_what_it_says():
    objective = {
        "use_coordexp_loss": True,
        "use_geom_loss": True,
        "lambda_coord": 2.0,
        "alpha_l1": 3.0,
        "beta_giou": 5.0,
    }
    config = ExperimentConfig.model_validate({"objective": objective})
    criterion = build_criterion(config)
    means = _means(criterion)
    metrics = means_to_metrics(means, split="train", config=config, criterion=criterion)
    box = 3.0 * means["box_l1"] + 5.0 * means["box_giou"]
    assert metrics["train_coord_loss"] == pytest.approx(box)
    assert metrics["train_total_loss"] == pytest.approx(means["text_ce"] + means["coord_ce"] + 2.0 * box)


def test_steps_without_boxes_have_no_coord_loss():
    config = ExperimentConfig()
    criterion = build_criterion(config)
    means = {name: value for name, value in _means(criterion).items() if not name.startswith("box_")}
    metrics = means_to_metrics(means, split="eval", config=config, criterion=criterion)
    assert "eval_coord_loss" not in metrics
    assert metrics["eval_total_loss"] == pytest.approx(means["text_ce"] + means["coord_ce"])


def test_waiting_is_logged_as_a_share_of_the_time():
    config = ExperimentConfig()
    criterion = build_criterion(config)
    metrics = train_metrics(_log(_means(criterion)), config=config, criterion=criterion, flops=FLOPS)
    assert metrics["throughput/data_wait_fraction"] == 0.25
    assert metrics["throughput/mfu"] == pytest.approx(0.1)


def test_what_two_ranks_have_kept_in_a_checkpoint_is_taken_up_once_by_two_or_by_one(tmp_path, monkeypatch):
    def averages_of(rank, world_size):
        monkeypatch.setattr("coordexp.runs.ranks.rank", lambda: rank)
        monkeypatch.setattr("coordexp.runs.ranks.world_size", lambda: world_size)
        return RunningAverages()

    undisturbed = RunningAverages()
    for rank, values in enumerate([torch.arange(10.0) * 7, torch.arange(5.0) * 3]):
        saved = averages_of(rank, 2)
        for averages in (saved, undisturbed):
            averages.add("loss", values.sum(), len(values))
            averages.add_errors(values)
        saved.save(tmp_path)
    means, sums = undisturbed.read()
    assert P90_NAME in means

    resumed_sums = []
    for rank in (0, 1):
        resumed = averages_of(rank, 2)
        resumed.resume(tmp_path)
        resumed_sums.append(resumed.read()[1]["loss"])
    assert sum(resumed_sums) == sums["loss"]

    alone = averages_of(0, 1)
    alone.resume(tmp_path)
    assert alone.read() == (means, sums)
