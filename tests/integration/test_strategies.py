"""One run on two workers in DDP and ZeRO-2, and on another number of workers."""

import pytest
import torch
from safetensors.torch import load_file

from coordexp.coord_tokens.offset_adapter import active_offset
from coordexp.model.loading import load
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.runs.reporter import committed_checkpoints
from tests.support.strategies import diverging, images_of, losses_of, run_on, spawn
from tests.support.training import prepared, small_config, with_changes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS, STOP = 6, 2


def _config(base, runs, *, training=None, **cluster):
    """Two epochs of three steps; eight images a step: 2 workers x 2 x 2 accumulated."""
    steps = {"max_steps": STEPS, "per_device_batch_size": 2, "gradient_accumulation_steps": 2}
    small = small_config(base, runs, **(steps | (training or {})))
    evaluation = {"every_steps": 4, "subset_images": 3}
    return prepared(with_changes(small, cluster={"num_workers": 2, **cluster}, evaluation=evaluation))


@pytest.fixture(scope="module")
def ddp(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp")
    config = _config(base, folder / "runs")
    run_on(2, config, folder / "log")
    assert len(losses_of(config)) == STEPS
    return config


def _adapter(config):
    return committed_checkpoints(RunFolder.of(config).path)[-1]


def _assert_same_tensors(found, expected, *, tolerance):
    found, expected = load_file(found), load_file(expected)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def test_zero_stops_resumes_and_ends_where_ddp_does(ddp, base, tmp_path):
    """Training, evaluation on the way, a checkpoint of both ranks' shards, resume, evaluation and merge."""
    config = _config(base, tmp_path / "runs", strategy="zero2")
    run_on(2, config, tmp_path / "log", stop=STOP)
    (checkpoint,) = committed_checkpoints(RunFolder.of(config).path)
    shards = sorted(path.name for path in checkpoint.glob("global_step*/*optim_states.pt"))
    assert shards == [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)]
    assert {path.name for path in checkpoint.glob("rng_state*")} == {"rng_state_0.pth", "rng_state_1.pth"}

    lines = run_on(2, config, tmp_path / "log")
    assert any(f"resumes at step {STOP}" in line for line in lines)
    expected = "starts: zero2 on 2 workers, 8 images a step: 2 x 2 x 2 accumulated"
    assert any(expected in line for line in lines)
    assert losses_of(config) == pytest.approx(losses_of(ddp), rel=1e-5)
    assert images_of(config) == images_of(ddp)

    mine, theirs = _adapter(config), _adapter(ddp)
    for name in ("adapter_config.json", "adapter_model.safetensors", "trainer_state.json", "scheduler.pt"):
        assert (mine / name).is_file()
        assert (theirs / name).is_file()
    _assert_same_tensors(mine / "adapter_model.safetensors", theirs / "adapter_model.safetensors", tolerance=1e-4)
    merged = "merged/model.safetensors"
    _assert_same_tensors(RunFolder.of(config).path / merged, RunFolder.of(ddp).path / merged, tolerance=1e-4)
    assert (RunFolder.of(config).evaluation("final").path / "constrained" / "detections.expected.json").is_file()
    offset = active_offset(load(ExperimentFolder.of(config).base(config), mine).model)
    assert offset is not None
    assert float(offset.embed_offset.detach().abs().max()) > 1e-3


@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_gradients_that_are_not_finite_stop_zero_before_a_weight_changes(base, tmp_path, tuning):
    """DeepSpeed leaves such a step out where weights are float32; under bfloat16 ones it would take it."""
    config = _config(base, tmp_path / "runs", strategy="zero2")
    if tuning == "full":
        full = {"training": {"tuning": "full", "optimizer": "multimodal"}, "model": {"dtype": "bfloat16"}}
        config = prepared(with_changes(config, custom={"coord_offset": {"enabled": False}}, **full))
    spawn(diverging, 2, config, tmp_path / "log", stop=2)
    for rank in (0, 1):
        said = (tmp_path / f"log-said-{rank}").read_text()
        assert said.startswith("True "), said
        assert int(said.split()[1]) > 20
        assert "step 2: the loss" in said
        assert "weights were not changed" in said


def test_dora_under_zero2_is_dora_under_ddp(base, tmp_path):
    """What ``experiments/coco_qwen3vl_8b_dlora.yaml`` puts together."""
    ends = {}
    for strategy in ("ddp", "zero2"):
        config = _config(base, tmp_path / strategy, training={"tuning": "dora"}, strategy=strategy)
        run_on(2, config, tmp_path / f"{strategy}-log", stop=STEPS)
        ends[strategy] = config
    assert losses_of(ends["zero2"]) == pytest.approx(losses_of(ends["ddp"]), rel=1e-5)
    mine, theirs = (_adapter(config) / "adapter_model.safetensors" for config in (ends["zero2"], ends["ddp"]))
    assert any("lora_magnitude_vector" in name and "visual" in name for name in load_file(mine))
    _assert_same_tensors(mine, theirs, tolerance=1e-4)


def test_bfloat16_under_zero_trains_and_saves_float32_adapters(base, tmp_path):
    """DeepSpeed's own bf16 would cast them; here autocast does what it does under DDP."""
    ends = {}
    for strategy in ("ddp", "zero2"):
        training = {"precision": "bfloat16", "max_steps": 2}
        config = _config(base, tmp_path / strategy, strategy=strategy, training=training)
        run_on(2, config, tmp_path / f"log-{strategy}")
        ends[strategy] = config
    weights = load_file(_adapter(ends["zero2"]) / "adapter_model.safetensors")
    assert {value.dtype for value in weights.values() if value.is_floating_point()} == {torch.float32}
    assert losses_of(ends["zero2"])[0] == losses_of(ends["ddp"])[0]
    assert losses_of(ends["zero2"]) == pytest.approx(losses_of(ends["ddp"]), rel=1e-4)


def test_two_workers_go_on_as_one_with_the_same_images_a_step(ddp, base, tmp_path):
    """As the refusal of ``cluster.num_workers=1`` alone says: training.gradient_accumulation_steps=4."""
    run_on(2, _config(base, tmp_path / "runs"), tmp_path / "two", stop=STOP)
    config = _config(base, tmp_path / "runs", num_workers=1, training={"gradient_accumulation_steps": 4})
    lines = run_on(1, config, tmp_path / "one")
    assert any(f"resumes at step {STOP}" in line for line in lines)
    assert losses_of(config) == pytest.approx(losses_of(ddp), rel=1e-5)
    assert images_of(config) == images_of(ddp)
    _assert_same_tensors(
        _adapter(config) / "adapter_model.safetensors", _adapter(ddp) / "adapter_model.safetensors", tolerance=1e-4
    )
