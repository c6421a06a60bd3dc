"""The hooks follow their model: replaced tables, copies, conversions, a bypassed head."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from coordexp.coord_tokens.offset_adapter import ADAPTER_NAME, active_offset, inner_model, reattach_coord_offset_hooks
from coordexp.errors import CheckpointError, ConfigError, TokenizerError
from coordexp.model.head_bypass import pass_through_head
from tests.support.offsets import COORD_IDS, FIRST, IDS, TIES, fresh, installed, logits, randomise, wrapped


def _num_hooks(model) -> int:
    return sum("offset.hooks" in type(hook).__module__ for m in model.modules() for hook in m._forward_hooks.values())


def test_reattaching_twice_adds_nothing_twice():
    model = wrapped(installed())
    randomise(model)
    before = logits(model)
    for _ in range(2):
        assert reattach_coord_offset_hooks(model) is active_offset(model)
    assert torch.equal(logits(model), before)
    assert _num_hooks(model) == 2
    assert reattach_coord_offset_hooks(fresh()) is None


@pytest.mark.parametrize(("tied", "tie_head"), TIES)
def test_replaced_tables_are_hooked_at_the_next_forward(tied, tie_head):
    model = installed(tied, tie_head=tie_head)
    randomise(model)
    before = logits(model)
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    model.set_input_embeddings(torch.nn.Embedding(*table.shape, _weight=table))
    assert torch.equal(logits(model), before)
    new_head = torch.nn.Linear(*head.T.shape, bias=False)
    new_head.weight = head
    model.set_output_embeddings(new_head)
    assert torch.equal(logits(model), before)
    model.set_input_embeddings(torch.nn.Embedding(*table.shape, _weight=table))
    assert reattach_coord_offset_hooks(model) is active_offset(model)  # or at once, to call the table by itself
    row = model.get_input_embeddings()(torch.tensor([FIRST]))
    assert torch.equal(row[0], table[FIRST] + active_offset(model).embed_offset[0])


@pytest.mark.parametrize(("tied", "tie_head"), TIES)
def test_resizing_keeps_offsets_and_frozen_tables(tied, tie_head):
    model = installed(tied, tie_head=tie_head)
    randomise(model)
    before = logits(model)
    model.resize_token_embeddings(1700, mean_resizing=False)
    torch.testing.assert_close(logits(model)[..., :1641], before, rtol=0, atol=1e-5)  # other kernels at another width
    model(input_ids=IDS, labels=IDS).loss.backward()
    assert model.get_input_embeddings().weight.grad is None
    assert model.get_output_embeddings().weight.grad is None
    assert all(float(table.grad.abs().sum()) > 0 for table in active_offset(model).parameters())


@pytest.mark.parametrize("settings", [{"target_modules": ["q_proj", "lm_head", "embed_tokens"]}, {}], ids=["lora", ""])
def test_tables_that_peft_wraps_too_get_the_offsets_once(settings):
    """LoRA on the head, or the head itself among modules_to_save, moves the hooked module one level down."""
    plain = installed(tied=False)
    randomise(plain)
    saved = [ADAPTER_NAME] if settings else [ADAPTER_NAME, "lm_head"]
    model = installed(tied=False)
    outer = get_peft_model(model, LoraConfig(modules_to_save=saved, **({"target_modules": ["q_proj"]} | settings)))
    randomise(outer)
    num_modules = sum(1 for _ in outer.modules())
    assert num_modules < 2 * sum(1 for _ in plain.modules())  # control: copying the head did not copy the model
    for _ in range(2):
        assert torch.equal(logits(outer.eval()), logits(plain))
        reattach_coord_offset_hooks(outer)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_converting_the_model_converts_the_adapter(dtype):
    model = installed()
    randomise(model)
    model.to(dtype)
    assert {p.dtype for p in active_offset(model).parameters()} == {dtype}
    assert active_offset(model).coord_ids.dtype == torch.int64
    assert logits(model).dtype == dtype
    twin = fresh().to(dtype)
    with torch.no_grad():
        twin.get_input_embeddings().weight[FIRST : FIRST + 1000] += active_offset(model).embed_offset
    expected = logits(twin)
    relative = 1e-9 if dtype == torch.float64 else 0.02
    torch.testing.assert_close(logits(model), expected, rtol=0, atol=relative * float(expected.abs().max()))


def test_inference_mode_and_autocast():
    model = installed()
    randomise(model)
    expected = logits(model)
    with torch.inference_mode():
        assert torch.equal(model(input_ids=IDS, use_cache=False).logits, expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = logits(model)
    torch.testing.assert_close(cast.float(), expected, rtol=0, atol=0.05 * float(expected.abs().max()))


@pytest.mark.parametrize("saved_tie", [True, False])
def test_offsets_of_other_ids_or_tables_are_not_loaded(saved_tie):
    saved = active_offset(installed(tie_head=saved_tie)).state_dict()
    with pytest.raises(TokenizerError, match=r"641\.\.1640.*640\.\.1639"):
        active_offset(installed(tie_head=saved_tie, coord_ids=range(FIRST - 1, FIRST + 999))).load_state_dict(saved)
    both = f"tie_head: {str(saved_tie).lower()}.*{str(not saved_tie).lower()}"
    with pytest.raises(CheckpointError, match=both):
        active_offset(installed(tie_head=not saved_tie)).load_state_dict(saved, strict=False)


@pytest.mark.parametrize("wrap", [False, True], ids=["plain", "peft"])
def test_pass_through_head_gives_hidden_states_and_restores(wrap):
    outer = wrapped(installed(), tuning="dora") if wrap else installed()
    randomise(outer)
    before = logits(outer)
    keep = torch.zeros_like(IDS, dtype=torch.bool)
    keep[0, [1, 4]] = True
    with torch.no_grad():
        states = outer(input_ids=IDS, output_hidden_states=True).hidden_states[-1]
    head = inner_model(outer).get_output_embeddings()

    def interrupted() -> None:
        with pass_through_head(outer):
            raise KeyError("interrupted")

    with torch.no_grad(), pass_through_head(outer), pass_through_head(outer):
        hidden = outer(input_ids=IDS, logits_to_keep=keep, use_cache=False).logits
    with pytest.raises(KeyError, match="interrupted"):
        interrupted()
    assert torch.equal(hidden, states[keep])
    assert "forward" not in vars(head)
    assert torch.equal(logits(outer), before)


def test_trainable_tokens_of_the_same_rows_are_refused():
    model = installed()
    config = LoraConfig(target_modules=["q_proj"], trainable_token_indices={"embed_tokens": list(COORD_IDS)})
    outer = get_peft_model(model, config)
    with pytest.raises(ConfigError, match="trainable_token_indices"):
        logits(outer)
