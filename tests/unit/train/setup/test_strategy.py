"""How many workers share a run, and how: the rules that hold before the start, and what is checked after the set-up."""

import json
import random

import numpy as np
import pytest
import torch
from torch import distributed, nn
from transformers import TrainerControl, TrainerState, TrainingArguments

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import CheckpointError, ConfigError, TrainingError
from coordexp.train.setup import arguments, strategy
from coordexp.train.setup.arguments import SetupCheck, check_setup
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


def test_lonely_zero_is_refused():
    with pytest.raises(ConfigError, match="zero3 has nothing to share with cluster.num_workers: 1"):
        check_strategy(_config(strategy="zero3"))
    with pytest.raises(ConfigError, match="zero3 with training.tuning: full is not shown to equal ddp"):
        check_strategy(_config(num_workers=2, strategy="zero3", training={"tuning": "full"}))
    with pytest.raises(ConfigError, match="log_term_gradients with cluster.strategy: zero2"):
        check_strategy(_config(num_workers=2, strategy="zero2", training={"log_term_gradients": 5}))
    check_strategy(_config(num_workers=2, strategy="zero2"))


def test_an_epoch_divides_over_the_workers():
    assert [samples_at_once(_config(num_workers=count), num_workers=count) for count in (1, 2, 3)] == [1, 4, 6]


def test_the_line_at_the_start():
    config = _config(num_workers=4, accumulation=3)
    assert strategy_line(config, num_workers=4) == "ddp on 4 workers, 24 images a step: 4 x 2 x 3 accumulated"
    zero = _config(num_workers=2, strategy="zero2")
    assert strategy_line(zero, num_workers=2) == "zero2 on 2 workers, 4 images a step: 2 x 2 x 1 accumulated"
    assert strategy_line(_config(), num_workers=1).startswith("one process on 1 worker, 2 images")


@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_the_shipped_settings_train_in_float32_and_compile_nothing(name):
    settings = deepspeed_settings(_config(num_workers=2, strategy=name))
    assert settings["zero_optimization"]["stage"] == int(name[-1])
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
    with pytest.raises(ConfigError, match=r"zero2.json: zero_optimization.stage is 1, expected 2 for zero2"):
        deepspeed_settings(config)
    (folder / "zero2.json").write_text("{")
    with pytest.raises(ConfigError, match=r"zero2.json: not readable JSON"):
        deepspeed_settings(config)


def test_missing_settings_say_where_they_were_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("coordexp.shipped.shipped_experiments", lambda: tmp_path / "none")
    with pytest.raises(ConfigError, match=rf"zero3.json: there is no such file.*{tmp_path}/none"):
        check_strategy(_config(num_workers=2, strategy="zero3"))


def test_a_group_of_another_size_is_noticed(group):
    check_group(_config().cluster, given=1)
    with pytest.raises(TrainingError, match="2 workers were started, but the process group has 1"):
        check_group(_config(num_workers=2).cluster, given=2)
    with pytest.raises(TrainingError, match="asks for 3 workers, but 1 were started"):
        check_group(_config(num_workers=3).cluster, given=1)


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
    with pytest.raises(TrainingError, match="asks for 4 workers"):
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
    check = SetupCheck(_config(num_workers=2), lambda: nn.Linear(2, 2))
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
