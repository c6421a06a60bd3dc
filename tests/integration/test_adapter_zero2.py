"""DeepSpeed ZeRO-2 from the shipped file: two CPU processes end where DDP and one process end."""

from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file
from torch import multiprocessing

from coordexp.coord_tokens.offset_adapter import active_offset
from coordexp.model.loading import load
from coordexp.runs.folder import ExperimentFolder
from tests.integration.adapter_training_support import WORLD_SIZE, train, worker
from tests.integration.ranks_support import environment_of_ranks
from tests.integration.training_support import prepared, small_config, write_base

pytestmark = [pytest.mark.slow]
WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True)
class Way:
    """How two ranks share the eight samples of a step."""

    zero2: bool
    accumulation: int


WAYS = {
    ("lora", True): (Way(zero2=False, accumulation=1), Way(zero2=True, accumulation=1)),
    ("dora", False): (Way(zero2=True, accumulation=2),),
}


@pytest.fixture(scope="module", params=WAYS, ids=["lora-tied", "dora-untied"])
def setting(request, tmp_path_factory):
    tuning, tie_head = request.param
    folder = tmp_path_factory.mktemp("zero2")
    small = small_config(write_base(folder / "base"), folder / "runs", tuning=tuning, max_steps=3)
    tree = small.model_dump(mode="json")
    tree["custom"]["coord_offset"]["tie_head"] = tie_head
    return prepared(type(small).model_validate(tree)), WAYS[request.param]


def _with_training(config, **changes):
    return config.model_copy(update={"training": config.training.model_copy(update=changes)})


def _on_two_ranks(config, output, monkeypatch, *, zero2):
    settings = environment_of_ranks(WORLD_SIZE) | {"DS_ACCELERATOR": "cpu"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    args = (str(output / "store"), config.model_dump_json(), zero2, str(output))
    multiprocessing.spawn(worker, args=args, nprocs=WORLD_SIZE)
    return [torch.load(output / f"seen-{rank}.pt") for rank in range(WORLD_SIZE)]


def _assert_same_adapter(found, expected):
    # AdamW divides by the gradient's own size: where that is mostly rounding, an element moves by 1.3e-5 otherwise.
    found, expected = load_file(found / WEIGHTS), load_file(expected / WEIGHTS)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=3e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_zero2_ddp_and_one_process_agree(setting, tmp_path, monkeypatch):
    config, ways = setting
    alone = train(_with_training(config, per_device_batch_size=8), tmp_path / "alone")
    assert (alone["world_size"], alone["zero_stage"], len(alone["losses"])) == (1, 0, 3)
    for way in ways:
        output = tmp_path / f"{way.zero2}-{way.accumulation}"
        output.mkdir()
        micro = 4 // way.accumulation
        shared = _with_training(config, per_device_batch_size=micro, gradient_accumulation_steps=way.accumulation)
        for seen in _on_two_ranks(shared, output, monkeypatch, zero2=way.zero2):
            assert seen["world_size"] == WORLD_SIZE
            assert seen["engine"] == ("DeepSpeedEngine" if way.zero2 else "DistributedDataParallel")
            assert (seen["zero_stage"], seen["micro_batch"]) == ((2, micro) if way.zero2 else (0, 0))
            assert seen["parameter_dtype"] == {"torch.float32"}
            assert seen["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        _assert_same_adapter(output / "adapter", tmp_path / "alone" / "adapter")
        offset = active_offset(load(ExperimentFolder.of(config).base(config), output / "adapter").model)
        assert offset.tie_head is config.custom.coord_offset.tie_head
        assert all(float(table.detach().abs().max()) > 1e-3 for table in offset.parameters())


def test_half_of_the_samples_give_another_run(setting, tmp_path):
    """Negative control: what a rank that trains by itself would end in."""
    config, _ = setting
    whole, half = (train(_with_training(config, per_device_batch_size=size), tmp_path / str(size)) for size in (8, 4))
    assert half["losses"] != pytest.approx(whole["losses"], rel=1e-3)
    with pytest.raises(AssertionError):
        _assert_same_adapter(tmp_path / "4" / "adapter", tmp_path / "8" / "adapter")
