"""The estimate of memory: its parts, and what autograd keeps against torch's own saved-tensor hooks."""

import functools
import re
import weakref

import pytest
import torch
from torch import nn
from transformers import Qwen3VLConfig

from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.coord_tokens.vocab import expand_vocab
from coordexp.doctor import memory
from coordexp.doctor.checkpoint import published_config
from coordexp.doctor.memory import (
    EVALUATION,
    TRAINING,
    MemoryEstimate,
    Mode,
    ParameterCounts,
    SequenceSize,
    estimate,
    kept_bytes,
    run_model,
    text_layer_bytes,
    vision_block_bytes,
)
from coordexp.model.checkpoint.stored_model import Dimensions, empty_model
from coordexp.model.head_bypass import pass_through_head
from coordexp.model.lora import apply_tuning
from coordexp.model.tiny.parts import build_model, build_tokenizer

SIZE = SequenceSize(prompt=60, length=100, patches=144)
IDS = range(641, 1641)
BATCH, GRID = 4, (12, 12)
PATCHES = GRID[0] * GRID[1]
# The stated factor: everything but float32 weights under autocast, whose copies are a summand of their own.
LOW, HIGH = 0.95, 1.06


def _run(tuning: str = "lora", *, workers: int = 1, tie_head: bool = True, **training: object) -> ExperimentConfig:
    offset = tuning != "full"
    return ExperimentConfig.model_validate(
        {
            "training": {
                "tuning": tuning,
                "optimizer": "multimodal_coord_offset" if offset else "multimodal",
                "per_device_batch_size": 4,
                **training,
            },
            "custom": {"coord_offset": {"enabled": offset, "tie_head": tie_head, "dtype": "float32"}},
            "cluster": {"num_workers": workers},
        }
    )


@functools.cache
def _tiny_config() -> Qwen3VLConfig:
    return build_model(build_tokenizer()).config


def _estimate(
    run: ExperimentConfig, *, dtype: torch.dtype = torch.float32, on_gpu: bool = False, size: SequenceSize = SIZE
) -> MemoryEstimate:
    model = run_model(_tiny_config(), run, dtype=dtype, offset_ids=IDS)
    (found,) = estimate(model, run, [size], on_gpu=on_gpu)
    return found


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
    parts = _estimate(run, dtype=dtype).phases[TRAINING]
    assert parts["weights"] == sum(parameter.nbytes for parameter in model.parameters())
    assert parts["gradients"] == sum(parameter.grad.nbytes for parameter in trained)
    assert parts["AdamW moments"] == sum(value.nbytes for value in state)


def test_every_part_is_in_the_docstring():
    text = memory.__doc__.lower()
    names = {name for parts in _estimate(_run(), on_gpu=True).phases.values() for name in parts}
    assert len(names) >= 14
    for name in names:
        words = {"adamw moments": "two moments", "adamw step": "while it steps", "autocast copies": "autocast"}
        words |= {"text activations": "text and vision activations", "vision activations": "text and vision"}
        assert re.search(words.get(name.lower(), name.lower()), text), name


def test_the_peak_is_the_larger_phase():
    found = _estimate(_run())
    assert found.num_bytes == max(found.totals.values())
    assert found.totals == {name: sum(parts.values()) for name, parts in found.phases.items()}


def test_what_costs_memory_and_what_saves_it():
    plain = _estimate(_run())
    assert _estimate(_run(workers=2)).phases[TRAINING]["gradients"] == 2 * plain.phases[TRAINING]["gradients"]
    checkpointed = _estimate(_run(gradient_checkpointing=True)).phases[TRAINING]
    assert checkpointed["text activations"] < plain.phases[TRAINING]["text activations"]
    assert _estimate(_run(precision="bfloat16")).phases[TRAINING]["autocast copies"] > 0
    assert plain.phases[TRAINING]["autocast copies"] == 0
    twice = _estimate(_run(per_device_batch_size=8)).phases[TRAINING]
    assert twice["text activations"] == 2 * plain.phases[TRAINING]["text activations"]
    frozen = _estimate(_run(lora={"vision": False})).phases[TRAINING]
    assert frozen["vision activations"] == 0
    full = _estimate(_run("full")).phases[TRAINING]
    assert full["head"] > 2 * 4 * 4 * 40 * 1641
    longer = _estimate(_run(), size=SequenceSize(60, 200, 144))
    assert longer.totals[TRAINING] > plain.totals[TRAINING]
    # Evaluation ends at max_new_tokens, whatever the targets are.
    assert longer.phases[EVALUATION] == plain.phases[EVALUATION]


def test_zero_divides_over_the_workers():
    def parts_of(strategy):
        run = _run(workers=4)
        cluster = run.cluster.model_copy(update={"strategy": strategy})
        found = _estimate(run.model_copy(update={"cluster": cluster}))
        return found.phases[TRAINING], found.phases[EVALUATION]

    (ddp, _), (zero2, evaluation) = map(parts_of, ("ddp", "zero2"))
    assert 4 * zero2["AdamW moments"] == ddp["AdamW moments"]
    assert 4 * zero2["gradients"] == ddp["gradients"]
    assert zero2["weights"] == ddp["weights"]
    assert evaluation["weights"] == ddp["weights"]


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
    model = run_model(config, run, dtype=torch.bfloat16, offset_ids=range(151_670, 152_670))
    (found,) = estimate(model, run, [SequenceSize(430, 1500, 1600)], on_gpu=True)
    assert found.phases[EVALUATION]["key-value cache"] == 32 * (430 + 1024) * 4096 * 37
    assert found.phases[EVALUATION]["logits"] == 4 * 4 * 32 * 152_670  # the expanded table


@pytest.mark.parametrize(
    ("tuning", "tied", "tie_head", "vision", "structure", "dtype"),
    [
        ("lora", True, True, True, "native", torch.bfloat16),
        ("lora", False, False, False, "spec", torch.float32),
        ("dora", True, True, True, "native", torch.float32),
        ("full", False, True, True, "native", torch.bfloat16),
    ],
)
def test_parameters_are_counted_as_in_the_real_model(tuning, tied, tie_head, vision, structure, dtype):
    run = _run(tuning, tie_head=tie_head, lora={"rank": 4, "vision": vision})
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, tie_word_embeddings=tied)
    ids = range(IDS.start, IDS.stop + (2 if structure == "spec" else 0))
    counted = run_model(model.config, run, dtype=dtype, offset_ids=ids)
    assert {parameter.device.type for parameter in counted.parameters()} == {"meta"}

    vocab = expand_vocab(model, tokenizer, structure=structure)
    assert [*vocab.coord_ids, *vocab.added_structure_ids] == [*ids]
    model = model.to(dtype)
    if run.custom.coord_offset.enabled:
        install_coord_offset_adapter(model, coord_ids=ids, tie_head=tie_head, dtype="float32")
    real = apply_tuning(model, tuning=tuning, rank=4, alpha=8.0, dropout=0.0, vision=vision, seed=0)
    assert ParameterCounts.of(counted) == ParameterCounts.of(real)


def test_other_adapters_are_counted_otherwise():
    config = build_model(build_tokenizer()).config
    counts = {
        name: ParameterCounts.of(run_model(config, _run(name), dtype=torch.float32, offset_ids=IDS))
        for name in ("lora", "dora")
    }
    assert counts["lora"].num_trained < counts["dora"].num_trained


@pytest.mark.parametrize(("model", "expected"), [("2B", 2_127_532_032), ("4B", 4_437_815_808), ("8B", 8_767_123_696)])
def test_published_shapes(model, expected):
    # 4B by hand: embedding 151,936 x 2,560; 36 layers of 2 x 2,560 x 4,096 + 2 x 2,560 x 1,024 + 3 x 2,560 x 9,728
    # + 2 x 2,560 + 2 x 128; last norm 2,560; the vision tower 415.3 M.
    config = published_config(f"Qwen/Qwen3-VL-{model}-Instruct")
    found = ParameterCounts.of(empty_model(config, dtype=torch.bfloat16))
    assert found.num == expected
    assert found.num_bytes == 2 * expected
    if model == "4B":
        layer = 2 * 2560 * 4096 + 2 * 2560 * 1024 + 3 * 2560 * 9728 + 2 * 2560 + 2 * 128
        text = 151_936 * 2560 + 36 * layer + 2560
        assert found.num - text == 415_347_712
        assert abs(found.num - 4.4e9) < 0.05e9


class _Held:
    """A saved tensor, alive for as long as the graph needs it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def _model(tuning: str, *, vision: bool, dtype: torch.dtype, attention: str = "sdpa"):
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    vocab = expand_vocab(model, tokenizer)
    model = model.to(dtype)
    model.set_attn_implementation(attention)
    if tuning != "full":
        install_coord_offset_adapter(model, coord_ids=vocab.coord_ids, dtype="float32")
    config = model.config
    wrapped = apply_tuning(model, tuning=tuning, rank=16, alpha=32.0, dropout=0.0, vision=vision, seed=0)
    return wrapped.train(), config, tokenizer


def _batch(tokenizer, length: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    image = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 300, (BATCH, length), generator=generator)
    ids[:, 3] = tokenizer.convert_tokens_to_ids("<|vision_start|>")
    ids[:, 4 : 4 + PATCHES // 4] = image
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0  # a batch without padding needs no mask, and keeps less
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "mm_token_type_ids": (ids == image).long(),
        "image_grid_thw": torch.tensor([[1, *GRID]] * BATCH),
        "pixel_values": torch.randn(BATCH * PATCHES, 384, generator=generator).to(dtype),
    }


def _measured(model: nn.Module, batch: dict[str, torch.Tensor], *, autocast: bool) -> int:
    """Return the bytes of distinct storages that the graph holds after a forward pass, weights left out."""
    live: weakref.WeakSet[_Held] = weakref.WeakSet()

    def pack(tensor: torch.Tensor) -> _Held:
        held = _Held(tensor)
        live.add(held)
        return held

    owned = {one.untyped_storage().data_ptr() for one in (*model.parameters(), *model.buffers())}
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast),
        pass_through_head(model),
    ):
        hidden = model(**batch, use_cache=False).logits
    storages = {held.tensor.untyped_storage().data_ptr(): held.tensor.untyped_storage().nbytes() for held in live}
    assert hidden.requires_grad
    return sum(size for pointer, size in storages.items() if pointer not in owned)


def _mode(tuning: str, *, vision: bool, autocast: bool, dtype: torch.dtype, **changes: object) -> Mode:
    values = {"rank": 16, "dropout": False, "attention": "sdpa", "checkpointing": False} | changes
    return Mode(tuning=tuning, vision=vision, autocast=autocast, weight_bytes=dtype.itemsize, **values)


@pytest.mark.parametrize(
    ("tuning", "vision", "autocast", "dtype"),
    [
        ("lora", True, False, torch.float32),
        ("lora", True, True, torch.bfloat16),
        ("lora", True, False, torch.bfloat16),
        ("lora", False, True, torch.bfloat16),
        ("dora", True, False, torch.float32),
        ("dora", True, True, torch.bfloat16),
        ("full", True, False, torch.float32),
        ("full", True, True, torch.bfloat16),
    ],
)
@pytest.mark.parametrize("length", [pytest.param(100, marks=pytest.mark.slow), 250])
def test_estimate_is_within_the_stated_factor_of_what_the_graph_holds(tuning, vision, autocast, dtype, length):
    model, config, tokenizer = _model(tuning, vision=vision, dtype=dtype)
    measured = _measured(model, _batch(tokenizer, length, dtype), autocast=autocast)
    mode = _mode(tuning, vision=vision, autocast=autocast, dtype=dtype)
    estimated = sum(kept_bytes(Dimensions.of(config), mode, batch_size=BATCH, length=length, patches=PATCHES))
    assert LOW < estimated / measured < HIGH


def test_eager_attention_keeps_its_scores():
    model, config, tokenizer = _model("lora", vision=False, dtype=torch.float32, attention="eager")
    measured = _measured(model, _batch(tokenizer, 250, torch.float32), autocast=False)
    mode = _mode("lora", vision=False, autocast=False, dtype=torch.float32, attention="eager")
    estimated = sum(kept_bytes(Dimensions.of(config), mode, batch_size=BATCH, length=250, patches=PATCHES))
    assert 0.8 < estimated / measured < 1.25


def test_the_comparison_can_fail():
    model, config, tokenizer = _model("lora", vision=True, dtype=torch.float32)
    measured = _measured(model, _batch(tokenizer, 100, torch.float32), autocast=False)
    wrong = _mode("lora", vision=False, autocast=False, dtype=torch.float32)
    estimated = sum(kept_bytes(Dimensions.of(config), wrong, batch_size=BATCH, length=100, patches=PATCHES))
    assert not LOW < estimated / measured < HIGH


def test_checkpointing_keeps_the_inputs_of_layers():
    model, config, tokenizer = _model("lora", vision=True, dtype=torch.float32)
    model.activation_checkpointing_enable({"use_reentrant": False})
    measured = _measured(model, _batch(tokenizer, 250, torch.float32), autocast=False)
    shape = {"batch_size": BATCH, "length": 250, "patches": PATCHES}
    mode = _mode("lora", vision=True, autocast=False, dtype=torch.float32, checkpointing=True)
    text, vision = kept_bytes(Dimensions.of(config), mode, **shape)
    one_layer = max(
        text_layer_bytes(Dimensions.of(config), mode, batch_size=BATCH, length=250),
        vision_block_bytes(Dimensions.of(config), mode, num_images=BATCH, patches=PATCHES),
    )
    # Recomputation happens in backward: the graph itself holds all but that one layer.
    assert 0.8 < (text + vision - one_layer) / measured < 1.25
    without = _mode("lora", vision=True, autocast=False, dtype=torch.float32)
    assert text + vision < sum(kept_bytes(Dimensions.of(config), without, **shape)) / 2
