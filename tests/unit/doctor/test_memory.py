"""The estimate of memory: what is counted is exact, what autograd keeps is near torch's own saved-tensor hooks."""

import functools
import weakref

import pytest
import torch
from torch import nn
from transformers import Qwen3VLConfig

from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.coord_tokens.vocab import expand_vocab
from coordexp.doctor.checkpoint import published_config
from coordexp.doctor.memory import (
    EVALUATION,
    MERGE,
    TRAINING,
    MemoryEstimate,
    SequenceSize,
    estimate,
    num_bytes,
    run_model,
)
from coordexp.model.checkpoint.stored_model import empty_model
from coordexp.model.head_bypass import pass_through_head
from coordexp.model.lora import apply_tuning
from coordexp.model.tiny.parts import build_model, build_tokenizer

SIZE = SequenceSize(prompt=60, length=100, patches=144)
IDS = range(641, 1641)
BATCH, GRID = 4, (12, 12)
PATCHES = GRID[0] * GRID[1]
LOW, HIGH = 0.9, 1.45  # in float32 some copies are shared that the formula counts


def _run(tuning: str = "lora", *, workers: int = 1, tie_head: bool = True, **training: object) -> ExperimentConfig:
    offset = tuning != "full"
    return ExperimentConfig.model_validate(
        {
            "training": {
                "tuning": tuning,
                "optimizer": "multimodal_coord_offset" if offset else "multimodal",
                "per_device_batch_size": BATCH,
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
    run: ExperimentConfig, *, dtype: torch.dtype = torch.float32, size: SequenceSize = SIZE
) -> MemoryEstimate:
    return estimate(run_model(_tiny_config(), run, dtype=dtype, offset_ids=IDS), run, size, on_gpu=False)


@pytest.mark.parametrize(("tuning", "dtype"), [("lora", torch.bfloat16), ("full", torch.float32)])
def test_weights_gradients_and_moments_are_exact(tuning, dtype):
    model, _ = _model(tuning, vision=True, dtype=dtype)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    optimizer.step()
    state = [value for entry in optimizer.state.values() for name, value in entry.items() if name != "step"]
    phases = _estimate(_run(tuning), dtype=dtype).phases
    assert phases[TRAINING]["weights"] == sum(parameter.nbytes for parameter in model.parameters())
    assert phases[TRAINING]["gradients"] == sum(parameter.grad.nbytes for parameter in trained)
    assert phases[EVALUATION]["AdamW"] == sum(value.nbytes for value in state)


def test_what_costs_memory_and_what_saves_it():
    plain = _estimate(_run())
    assert plain.peak == max(plain.totals.values())
    assert plain.totals == {name: sum(parts.values()) for name, parts in plain.phases.items()}
    training = plain.phases[TRAINING]
    assert _estimate(_run(workers=2)).phases[TRAINING]["gradients"] == 2 * training["gradients"]
    assert _estimate(_run(gradient_checkpointing=True)).phases[TRAINING]["activations"] < training["activations"] / 2
    assert _estimate(_run(per_device_batch_size=8)).phases[TRAINING]["activations"] == 2 * training["activations"]
    assert _estimate(_run(lora={"vision": False})).phases[TRAINING]["activations"] < training["activations"]
    assert _estimate(_run("full")).phases[TRAINING]["logits"] > 2 * 4 * 4 * 40 * 1641
    longer = _estimate(_run(), size=SequenceSize(60, 200, 144))
    assert longer.totals[TRAINING] > plain.totals[TRAINING]
    # Evaluation ends at max_new_tokens, whatever the targets are.
    assert longer.phases[EVALUATION] == plain.phases[EVALUATION]
    assert plain.phases[MERGE]["weights"] == training["weights"]


def test_zero2_divides_over_the_workers():
    run = _run(workers=4)
    zero2 = run.model_copy(update={"cluster": run.cluster.model_copy(update={"strategy": "zero2"})})
    whole, divided = _estimate(run).phases[TRAINING], _estimate(zero2).phases[TRAINING]
    assert (4 * divided["AdamW"], 4 * divided["gradients"]) == (whole["AdamW"], whole["gradients"])
    assert divided["weights"] == whole["weights"]


@pytest.mark.parametrize(
    ("tuning", "tied", "tie_head", "vision", "structure", "dtype"),
    [
        ("lora", False, False, False, "spec", torch.float32),
        ("dora", True, True, True, "native", torch.bfloat16),
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
    for trained in (False, True):
        assert num_bytes(counted, trained=trained) == num_bytes(real, trained=trained)


@pytest.mark.parametrize(("model", "expected"), [("2B", 2_127_532_032), ("4B", 4_437_815_808), ("8B", 8_767_123_696)])
def test_published_shapes(model, expected):
    # 4B by hand: embedding 151,936 x 2,560; 36 layers of 2 x 2,560 x 4,096 + 2 x 2,560 x 1,024 + 3 x 2,560 x 9,728
    # + 2 x 2,560 + 2 x 128; last norm 2,560; the vision tower 415.3 M.
    config = published_config(f"Qwen/Qwen3-VL-{model}-Instruct")
    assert num_bytes(empty_model(config, dtype=torch.bfloat16)) == 2 * expected
    if model == "4B":
        layer = 2 * 2560 * 4096 + 2 * 2560 * 1024 + 3 * 2560 * 9728 + 2 * 2560 + 2 * 128
        text = 151_936 * 2560 + 36 * layer + 2560
        assert expected - text == 415_347_712


class _Held:
    """A saved tensor, alive for as long as the graph needs it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def _model(tuning: str, *, vision: bool, dtype: torch.dtype):
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    vocab = expand_vocab(model, tokenizer)
    model = model.to(dtype)
    if tuning != "full":
        install_coord_offset_adapter(model, coord_ids=vocab.coord_ids, dtype="float32")
    wrapped = apply_tuning(model, tuning=tuning, rank=16, alpha=32.0, dropout=0.0, vision=vision, seed=0)
    return wrapped.train(), tokenizer


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


@pytest.mark.parametrize(
    ("tuning", "vision", "precision", "dtype"),
    [
        ("lora", True, "float32", torch.float32),
        ("lora", False, "bfloat16", torch.bfloat16),
        ("dora", True, "bfloat16", torch.bfloat16),
        ("full", True, "bfloat16", torch.bfloat16),
    ],
)
def test_activations_are_near_what_the_graph_holds(tuning, vision, precision, dtype):
    model, tokenizer = _model(tuning, vision=vision, dtype=dtype)
    measured = _measured(model, _batch(tokenizer, 250, dtype), autocast=precision == "bfloat16")
    size = SequenceSize(60, 250, PATCHES)
    run = _run(tuning, precision=precision, lora={"vision": vision})
    assert LOW < _estimate(run, dtype=dtype, size=size).phases[TRAINING]["activations"] / measured < HIGH
    other = _run(tuning, precision=precision, lora={"vision": vision}, per_device_batch_size=2 * BATCH)
    assert not LOW < _estimate(other, dtype=dtype, size=size).phases[TRAINING]["activations"] / measured < HIGH
