"""How many workers share a run, and how: the rules that hold before the start, and what is checked after the set-up."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from torch import distributed, nn
from transformers import TrainerControl, TrainerState, TrainingArguments

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ConfigError, TrainingError
from coordexp.train.schedule import Schedule
from coordexp.train.setup import arguments, strategy
from coordexp.train.setup.arguments import check_setup
from coordexp.train.setup.prepare import settings_hashes
from coordexp.train.setup.strategy import check_strategy, deepspeed_settings, samples_at_once, switch_notes


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
    with pytest.raises(ConfigError, match=r"cluster\.strategy: zero2.*cluster\.num_workers: 1"):
        check_strategy(_config(strategy="zero2"))
    with pytest.raises(ConfigError, match=r"training\.log_term_gradients.*cluster\.strategy: zero2"):
        check_strategy(_config(num_workers=2, strategy="zero2", training={"log_term_gradients": 5}))
    check_strategy(_config(num_workers=2, strategy="zero2"))


def test_an_epoch_fills_what_ranks_take_at_once(monkeypatch):
    for num_workers, num_samples in ((1, 1), (2, 4), (3, 6)):
        _workers(monkeypatch, num_workers)
        assert samples_at_once(_config(num_workers=num_workers)) == num_samples


def test_notes_say_what_keys_mean_where_all_weights_train_on_jsonl():
    paths = dict.fromkeys(("train_annotations", "train_images", "val_annotations", "val_images"), "a.jsonl")
    full = {"training": {"tuning": "full", "optimizer": "multimodal"}, "custom": {"coord_offset": {"enabled": False}}}
    notes = switch_notes(ExperimentConfig.model_validate({"data": {"format": "jsonl", **paths}, **full}))
    assert [note.partition(":")[0] for note in notes] == ["AP"]


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
    with pytest.raises(ConfigError, match=r"zero2\.json.*zero_optimization\.stage 2"):
        deepspeed_settings(config)
    (folder / "zero2.json").write_text("{")
    with pytest.raises(ConfigError, match=r"zero2\.json.*JSON"):
        deepspeed_settings(config)


def _workers(monkeypatch, count):
    monkeypatch.setattr(strategy.ranks, "world_size", lambda: count)


def test_what_the_libraries_silently_make_of_a_request_is_noticed_before_the_first_step(group, monkeypatch, tmp_path):
    plain = nn.Linear(2, 2)
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    for engine in (plain, ddp):
        check_setup(_config(), engine, trainer_world_size=1)
    _workers(monkeypatch, 2)
    two = _config(num_workers=2)
    with pytest.raises(TrainingError, match=r"cluster\.strategy: ddp.*2 workers.*Linear.*stage 0"):
        check_setup(two, plain, trainer_world_size=2)
    with pytest.raises(TrainingError, match="4 workers.*2 train"):
        check_setup(_config(num_workers=4), ddp, trainer_world_size=2)
    schedule = Schedule(two, SimpleNamespace(model_wrapped=plain), log=None, evaluator=None)
    with pytest.raises(TrainingError, match="2 workers.*trainer knows 1"):
        schedule.on_train_begin(TrainingArguments(str(tmp_path), use_cpu=True), TrainerState(), TrainerControl())


@pytest.mark.parametrize(
    ("shares_and_stage", "trainer_world_size", "is_right"),
    [((2, 2), 2, True), ((2, 1), 2, False), ((1, 2), 2, False), ((2, 2), 1, False)],
)
def test_an_engine_of_another_stage_or_fewer_processes_is_noticed(
    monkeypatch, shares_and_stage, trainer_world_size, is_right
):
    _workers(monkeypatch, 2)
    zero = _config(num_workers=2, strategy="zero2")
    monkeypatch.setattr(arguments, "shares_and_stage", lambda engine: shares_and_stage)
    with nullcontext() if is_right else pytest.raises(TrainingError, match=r"cluster\.strategy: zero2"):
        check_setup(zero, nn.Linear(2, 2), trainer_world_size=trainer_world_size)
