"""How many workers share a run, and how: the rules that hold before the start, and what is checked after the set-up."""

import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import distributed, nn
from transformers import TrainerControl, TrainerState, TrainingArguments

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import CheckpointError, ConfigError, TrainingError
from coordexp.train.schedule import Schedule
from coordexp.train.setup import arguments, strategy
from coordexp.train.setup.arguments import check_setup, training_arguments
from coordexp.train.setup.prepare import settings_hashes
from coordexp.train.setup.strategy import (
    check_group,
    check_strategy,
    deepspeed_settings,
    samples_at_once,
    strategy_line,
)
from coordexp.train.trainer import restore_generators


def _config(*, accumulation=1, size=2, training=None, **cluster):
    training = {"per_device_batch_size": size, "gradient_accumulation_steps": accumulation, **(training or {})}
    return ExperimentConfig.model_validate({"cluster": cluster, "training": training})


@pytest.fixture
def group(tmp_path):
    """A process group of this process alone."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_lonely_zero_and_term_gradients_are_refused():
    with pytest.raises(ConfigError, match="zero2 has nothing to share"):
        check_strategy(_config(strategy="zero2"))
    with pytest.raises(ConfigError, match="log_term_gradients with cluster.strategy: zero2"):
        check_strategy(_config(num_workers=2, strategy="zero2", training={"log_term_gradients": 5}))
    check_strategy(_config(num_workers=2, strategy="zero2"))


def test_another_number_of_workers_than_asked_does_not_train():
    with pytest.raises(TrainingError, match="1 train together"):
        training_arguments(_config(num_workers=2), output_dir="unused")


def test_an_epoch_fills_what_ranks_take_at_once(monkeypatch):
    found = []
    for count in (1, 2, 3):
        _workers(monkeypatch, count)
        found.append(samples_at_once(_config(num_workers=count)))
    assert found == [1, 4, 6]


def test_the_line_at_the_start():
    zero = _config(num_workers=2, strategy="zero2")
    assert strategy_line(zero) == "zero2 on 2 workers, 4 images a step: 2 x 2 x 1 accumulated"
    assert strategy_line(_config()).startswith("one process on 1 worker, 2 images")


def test_the_shipped_settings_train_in_float32_and_compile_nothing():
    settings = deepspeed_settings(_config(num_workers=2, strategy="zero2"))
    assert settings["zero_optimization"]["stage"] == 2
    assert settings["bf16"] == {"enabled": False}  # else what trains is cast to bfloat16
    assert settings["zero_force_ds_cpu_optimizer"] is False
    assert deepspeed_settings(_config()) is None


def test_settings_are_found_in_the_working_directory_first(tmp_path, monkeypatch):
    config = _config(num_workers=2, strategy="zero2")
    monkeypatch.chdir(tmp_path)
    assert deepspeed_settings(config)["zero_optimization"]["stage"] == 2  # beside the package
    folder = tmp_path / "experiments" / "deepspeed"
    folder.mkdir(parents=True)
    (folder / "zero2.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "mine": 1}))
    assert deepspeed_settings(config)["mine"] == 1
    before = settings_hashes(config)
    assert before.keys() == {"deepspeed/zero2.json"}
    (folder / "zero2.json").write_text(json.dumps({"mine": 1, "zero_optimization": {"stage": 2}}, indent=4))
    assert settings_hashes(config) == before  # the same settings, written otherwise
    (folder / "zero2.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "mine": 2}))
    assert settings_hashes(config) != before
    assert settings_hashes(_config()) == {}
    (folder / "zero2.json").write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    with pytest.raises(ConfigError, match=r"zero2.json: expected zero_optimization.stage 2"):
        deepspeed_settings(config)
    (folder / "zero2.json").write_text("{")
    with pytest.raises(ConfigError, match=r"zero2.json: not readable JSON"):
        deepspeed_settings(config)


def test_missing_settings_say_where_they_were_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("coordexp.shipped.shipped_experiments", lambda: tmp_path / "none")
    with pytest.raises(ConfigError, match=rf"zero2.json: there is no such file.*{tmp_path}/none"):
        check_strategy(_config(num_workers=2, strategy="zero2"))


def test_a_group_of_another_size_is_noticed(group):
    check_group(_config().cluster, given=1)
    with pytest.raises(TrainingError, match="2 workers were started, but the process group has 1"):
        check_group(_config(num_workers=2).cluster, given=2)
    with pytest.raises(TrainingError, match="asks for 3, but 1 train together"):
        check_group(_config(num_workers=3).cluster)


def _workers(monkeypatch, count):
    monkeypatch.setattr(strategy.ranks, "world_size", lambda: count)


def test_each_assertion_after_the_set_up(group, monkeypatch):
    """Planted faults: what the libraries silently make of a request they do not follow."""
    plain, ddp = nn.Linear(2, 2), nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    check_setup(_config(), plain, trainer_world_size=1)
    check_setup(_config(), ddp, trainer_world_size=1)
    _workers(monkeypatch, 2)
    with pytest.raises(TrainingError, match="the trainer's world size is 1: each would train alone"):
        check_setup(_config(num_workers=2), ddp, trainer_world_size=1)
    with pytest.raises(TrainingError, match="asked for 2 workers that share a batch, but Linear averages over 1"):
        check_setup(_config(num_workers=2), plain, trainer_world_size=2)
    with pytest.raises(TrainingError, match="asked for cluster.strategy: zero2, but got DistributedDataParallel"):
        check_setup(_config(num_workers=2, strategy="zero2"), ddp, trainer_world_size=2)
    with pytest.raises(TrainingError, match="asks for 4, but 2 train together"):
        check_setup(_config(num_workers=4), ddp, trainer_world_size=2)


def test_an_engine_of_another_stage_is_noticed(monkeypatch):
    _workers(monkeypatch, 2)
    for shares, stage, sentence in (
        (2, 1, "asked for cluster.strategy: zero2, but got Linear with ZeRO stage 1"),
        (1, 2, "Linear with ZeRO stage 2 averages over 1"),
    ):
        monkeypatch.setattr(arguments, "shares_and_stage", lambda engine, found=(shares, stage): found)
        with pytest.raises(TrainingError, match=sentence):
            check_setup(_config(num_workers=2, strategy="zero2"), nn.Linear(2, 2), trainer_world_size=2)


def test_the_check_runs_before_the_first_step(monkeypatch, tmp_path):
    _workers(monkeypatch, 2)
    trainer = SimpleNamespace(model_wrapped=nn.Linear(2, 2))
    check = Schedule(_config(num_workers=2), trainer, log=None, evaluator=None, listener=None)
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    with pytest.raises(TrainingError, match="each would train alone"):
        check.on_train_begin(arguments, TrainerState(), TrainerControl())


@pytest.mark.parametrize("name", ["rng_state.pth", "rng_state_0.pth"])
def test_generators_of_another_number_of_workers(tmp_path, name):
    states = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}
    torch.save(states, tmp_path / name)
    expected = (random.random(), float(np.random.random()), torch.rand(1))
    torch.rand(7)
    restore_generators(tmp_path)
    assert (random.random(), float(np.random.random()), torch.rand(1)) == expected
    with pytest.raises(CheckpointError, match="no random state"):
        restore_generators(tmp_path / "nothing")
