"""The estimate of what autograd keeps, against torch's own saved-tensor hooks."""

import weakref

import pytest
import torch
from torch import nn

from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.coord_tokens.vocab import expand_vocab
from coordexp.doctor.activations import Mode, kept_bytes, text_layer_bytes, vision_block_bytes
from coordexp.model.checkpoint.empty_model import Dimensions
from coordexp.model.head_bypass import pass_through_head
from coordexp.model.lora import apply_tuning
from coordexp.model.tiny.parts import build_model, build_tokenizer

BATCH, GRID = 4, (12, 12)
PATCHES = GRID[0] * GRID[1]
# The stated factor: everything but float32 weights under autocast, whose copies are a summand of their own.
LOW, HIGH = 0.95, 1.06


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
@pytest.mark.parametrize("length", [100, 250])
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


def _packed(tokenizer, length: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The same samples as one row, which transformers separates by the text positions in front."""
    batch = _batch(tokenizer, length, dtype)
    del batch["attention_mask"]
    own = torch.arange(length).expand(4, BATCH, length).reshape(4, 1, BATCH * length)
    row = {name: batch[name].reshape(1, -1) for name in ("input_ids", "mm_token_type_ids")}
    return {**batch, **row, "position_ids": own}


@pytest.mark.parametrize(("attention", "low", "high"), [("sdpa", LOW, HIGH), ("eager", 0.8, 1.25)])
def test_a_packed_batch_keeps_one_mask_over_the_whole_row(attention, low, high):
    model, config, tokenizer = _model("lora", vision=True, dtype=torch.float32, attention=attention)
    measured = _measured(model, _packed(tokenizer, 250, torch.float32), autocast=False)
    estimated = {
        packing: sum(
            kept_bytes(
                Dimensions.of(config),
                _mode("lora", vision=True, autocast=False, dtype=torch.float32, attention=attention, packing=packing),
                batch_size=BATCH,
                length=250,
                patches=PATCHES,
            )
        )
        for packing in (False, True)
    }
    assert low < estimated[True] / measured < high
    assert estimated[False] / measured < low


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
