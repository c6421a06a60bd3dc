import re

import pytest
import torch

from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.coord_tokens.vocab import expand_vocab
from coordexp.doctor import memory
from coordexp.doctor.memory import Shape, estimate
from coordexp.doctor.published import published_config
from coordexp.doctor.sizes import Sizes, expanded_config, meta_run_model
from coordexp.model.checkpoint.empty_model import Dimensions
from coordexp.model.lora import apply_tuning
from coordexp.model.tiny.parts import build_model, build_tokenizer

SHAPE = Shape(prompt=60, length=100, patches=144)


def _run(tuning: str = "lora", *, workers: int = 1, packing: bool = False, **training: object) -> ExperimentConfig:
    offset = tuning != "full"
    return ExperimentConfig.model_validate(
        {
            "training": {
                "tuning": tuning,
                "optimizer": "multimodal_coord_offset" if offset else "multimodal",
                "per_device_batch_size": 4,
                **training,
            },
            "custom": {"coord_offset": {"enabled": offset, "dtype": "float32"}},
            "cluster": {"num_workers": workers},
            "data": {"packing": packing},
        }
    )


def _estimate(run: ExperimentConfig, *, dtype: torch.dtype = torch.float32, on_gpu: bool = False, shape: Shape = SHAPE):
    config = build_model(build_tokenizer()).config
    model = meta_run_model(config, run, dtype=dtype, coord_ids=range(641, 1641), num_extra_ids=0)
    dimensions = Dimensions.of(expanded_config(config, num_tokens=1641))
    return estimate(dimensions, run, Sizes.of(model), shape, on_gpu=on_gpu)


def _parts(found, phase: int = 0) -> dict[str, int]:
    return {summand.name: summand.num_bytes for summand in found.phases[phase].summands}


@pytest.mark.parametrize("tuning", ["lora", "dora", "full"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_gradients_and_moments_are_exact(tuning, dtype):
    run = _run(tuning)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    vocab = expand_vocab(model, tokenizer)
    model = model.to(dtype)
    if tuning != "full":
        install_coord_offset_adapter(model, coord_ids=vocab.coord_ids, dtype="float32")
    model = apply_tuning(model, tuning=tuning, rank=16, alpha=32.0, dropout=0.0, vision=True, seed=0)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    optimizer.step()
    state = [value for entry in optimizer.state.values() for name, value in entry.items() if name != "step"]
    parts = _parts(_estimate(run, dtype=dtype))
    assert parts["weights"] == sum(parameter.nbytes for parameter in model.parameters())
    assert parts["gradients"] == sum(parameter.grad.nbytes for parameter in trained)
    assert parts["AdamW moments"] == sum(value.nbytes for value in state)


def test_every_summand_is_in_the_docstring():
    text = memory.__doc__.lower()
    names = {name for phase in (0, 1) for name in _parts(_estimate(_run(), on_gpu=True), phase)}
    assert len(names) >= 14
    for name in names:
        words = {"adamw moments": "two moments", "adamw step": "while it steps", "autocast copies": "autocast"}
        words |= {"text activations": "text and vision activations", "vision activations": "text and vision"}
        assert re.search(words.get(name.lower(), name.lower()), text), name


def test_the_peak_is_the_larger_phase():
    found = _estimate(_run())
    assert found.num_bytes == max(phase.num_bytes for phase in found.phases)
    assert found.phases[0].num_bytes == sum(_parts(found).values())
    assert found.fixed_bytes < found.num_bytes


def test_what_costs_memory_and_what_saves_it():
    plain = _estimate(_run())
    assert _parts(_estimate(_run(workers=2)))["gradients"] == 2 * _parts(plain)["gradients"]
    checkpointed = _parts(_estimate(_run(gradient_checkpointing=True)))
    assert checkpointed["text activations"] < _parts(plain)["text activations"]
    assert _parts(_estimate(_run(precision="bfloat16")))["autocast copies"] > 0
    assert _parts(plain)["autocast copies"] == 0
    twice = _parts(_estimate(_run(per_device_batch_size=8)))
    assert twice["text activations"] == 2 * _parts(plain)["text activations"]
    # 4 rows of 100 tokens with a mask each, or one row of 400 with one mask; 4 bytes, 4 layers
    packed = _parts(_estimate(_run(packing=True)))
    assert packed["text activations"] - _parts(plain)["text activations"] == 4 * 4 * (400**2 - 4 * 100**2)
    frozen = _parts(_estimate(_run(lora={"vision": False})))
    assert frozen["vision activations"] == 0
    full = _parts(_estimate(_run("full")))
    assert full["head"] > 2 * 4 * 4 * 40 * 1641
    longer = _estimate(_run(), shape=Shape(60, 200, 144))
    assert longer.phases[0].num_bytes > plain.phases[0].num_bytes
    assert longer.phases[1] == plain.phases[1]  # evaluation ends at max_new_tokens, whatever the targets are


def test_zero_divides_over_the_workers():
    def parts_of(strategy):
        run = _run(workers=4)
        cluster = run.cluster.model_copy(update={"strategy": strategy})
        found = _estimate(run.model_copy(update={"cluster": cluster}))
        return _parts(found), _parts(found, 1)

    (ddp, _), (zero2, _), (zero3, evaluation) = map(parts_of, ("ddp", "zero2", "zero3"))
    assert 4 * zero2["AdamW moments"] == 4 * zero3["AdamW moments"] == ddp["AdamW moments"]
    assert 4 * zero2["gradients"] == ddp["gradients"]
    assert zero2["weights"] == ddp["weights"]
    table = 1641 * 128 * 4  # stays whole
    assert zero3["weights"] == ddp["weights"] // 4 + table
    assert evaluation["weights"] == ddp["weights"]  # gathered to generate


def test_the_cache_of_the_published_4b_by_hand():
    # 2 x 8 heads x 128 x 2 bytes = 4,096 bytes a token and layer; 37 times for 36 layers and one copy
    config = published_config("Qwen/Qwen3-VL-4B-Instruct")
    run = ExperimentConfig.model_validate(
        {
            "evaluation": {"batch_size": 32, "max_new_tokens": 1024},
            "training": {"optimizer": "multimodal_coord_offset"},
            "custom": {"coord_offset": {"enabled": True}},
        }
    )
    model = meta_run_model(config, run, dtype=torch.bfloat16, coord_ids=range(151_670, 152_670), num_extra_ids=0)
    found = estimate(Dimensions.of(config), run, Sizes.of(model), Shape(430, 1500, 1600), on_gpu=True)
    assert _parts(found, 1)["key-value cache"] == 32 * (430 + 1024) * 4096 * 37
    assert _parts(found, 1)["logits"] == 4 * 4 * 32 * 151_936
