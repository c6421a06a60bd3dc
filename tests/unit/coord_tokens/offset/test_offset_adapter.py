"""What the coord-offset adapter computes, on a tiny Qwen3-VL without PEFT."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from coordexp.coord_tokens.offset_adapter import (
    CoordOffsetAdapter,
    active_offset,
    head_offset_block,
    head_offset_table,
    install_coord_offset_adapter,
)
from coordexp.model.head_bypass import float32_head
from tests.support.offsets import COORD_IDS, FIRST, IDS, SCATTERED, TIES, fresh, installed, logits, randomise


@pytest.mark.parametrize(("tied", "tie_head"), TIES)
def test_installing_changes_no_output(tied, tie_head):
    model = fresh(tied)
    before = logits(model)
    adapter = install_coord_offset_adapter(model, coord_ids=COORD_IDS, tie_head=tie_head)
    assert torch.equal(logits(model), before)
    assert adapter.tie_head is tie_head
    assert [name for name, _ in adapter.named_parameters()] == ["embed_offset", "head_offset"][: 2 - tie_head]


@pytest.mark.parametrize("ids", [COORD_IDS, SCATTERED], ids=["contiguous", "scattered"])
@pytest.mark.parametrize(("tied", "tie_head"), TIES)
def test_only_listed_ids_change_and_by_their_rows(tied, tie_head, ids):
    model = fresh(tied)
    table = model.get_input_embeddings().weight.detach().clone()
    head_table = model.get_output_embeddings().weight.detach().clone()
    every_id = torch.arange(len(table)).unsqueeze(0)
    hidden = torch.randn(1, 3, 128)
    base_logits = model.get_output_embeddings()(hidden)
    adapter = randomise(install_coord_offset_adapter(model, coord_ids=ids, tie_head=tie_head))

    embedded = model.get_input_embeddings()(every_id)[0]
    moved = model.get_output_embeddings()(hidden)
    listed = torch.zeros(len(table), dtype=torch.bool)
    listed[list(ids)] = True
    assert torch.equal(embedded[~listed], table[~listed])
    assert torch.equal(moved[..., ~listed], base_logits[..., ~listed])
    assert torch.equal(embedded[list(ids)], table[list(ids)] + adapter.embed_offset)
    head_rows = head_table[list(ids)] + head_offset_table(adapter)
    torch.testing.assert_close(moved[..., list(ids)], hidden @ head_rows.T, rtol=1e-5, atol=1e-5)
    assert not torch.equal(embedded[list(ids)], table[list(ids)])  # control: the offsets do act
    if not tie_head:
        assert not torch.equal(adapter.embed_offset, head_offset_table(adapter))


@pytest.mark.parametrize("ids", [[41, 44], [46, 40, 42]], ids=["within the block", "behind it"])
def test_neighbouring_rows_get_the_offsets_of_their_ids(ids):
    adapter = randomise(CoordOffsetAdapter(ids, hidden_size=3))
    block = head_offset_block(adapter, first_id=40, num_ids=5)
    rows = dict(zip(ids, adapter.embed_offset, strict=True))
    expected = [rows.get(one, torch.zeros(3)) for one in range(40, max(45, max(ids) + 1))]
    assert torch.equal(block, torch.stack(expected))


@pytest.mark.parametrize("ids", [COORD_IDS, SCATTERED], ids=["contiguous", "scattered"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_of_any_shape_and_integer_type(ids, dtype):
    table = torch.zeros(1641, 4)
    adapter = randomise(CoordOffsetAdapter(list(ids), hidden_size=4))
    every = torch.tensor([[5, FIRST + 3], [FIRST + 7, 1640]], dtype=dtype)
    found = adapter.add_to_embeddings(table[every], every)
    alone = adapter.add_to_embeddings(table[every[0, 1]], every[0, 1])
    assert torch.equal(found[0, 1], alone)
    assert torch.equal(alone, adapter.embed_offset[list(ids).index(FIRST + 3)])
    assert not found[0, 0].any()


@pytest.mark.parametrize(("tied", "tie_head"), TIES)
def test_only_the_adapter_gets_gradients_at_the_tables(tied, tie_head):
    model = installed(tied, tie_head=tie_head)
    adapter = active_offset(model)
    model(input_ids=IDS, labels=IDS).loss.backward()
    assert model.get_input_embeddings().weight.grad is None
    assert model.get_output_embeddings().weight.grad is None
    assert all(float(table.grad.abs().sum()) > 0 for table in adapter.parameters())
    if not tie_head:  # the embedding table learns only rows that were looked up
        used = adapter.embed_offset.grad.abs().sum(dim=1).nonzero().flatten() + FIRST
        assert used.tolist() == sorted({int(i) for i in IDS.flatten() if int(i) in COORD_IDS})


def test_gradients_equal_those_of_a_trainable_table():
    reference = fresh()
    reference.requires_grad_(False)
    table = reference.get_input_embeddings().weight.requires_grad_(True)
    reference(input_ids=IDS, labels=IDS).loss.backward()
    model = installed()
    model(input_ids=IDS, labels=IDS).loss.backward()
    offset = active_offset(model).embed_offset
    torch.testing.assert_close(offset.grad, table.grad[FIRST : FIRST + 1000], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("ids", [range(2, 5), [4, 2]], ids=["contiguous", "scattered"])
@pytest.mark.parametrize("tie_head", [True, False])
def test_gradcheck(ids, tie_head):
    torch.manual_seed(0)
    adapter = randomise(CoordOffsetAdapter(list(ids), hidden_size=3, tie_head=tie_head, dtype=torch.float64))
    hidden = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    raw = torch.randn(2, 2, 7, dtype=torch.float64, requires_grad=True)
    embeddings = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([[2, 0], [4, 6]])
    tables = tuple(adapter.parameters())
    assert torch.autograd.gradcheck(lambda z, h, *_: adapter.add_to_logits(z * 1.0, h), (raw, hidden, *tables))
    assert torch.autograd.gradcheck(lambda e, *_: adapter.add_to_embeddings(e, tokens), (embeddings, tables[0]))


def test_bfloat16_and_a_float32_table_on_it():
    for dtype, expected in (("auto", torch.bfloat16), ("float32", torch.float32), (torch.float32, torch.float32)):
        model = fresh().to(torch.bfloat16)
        base_logits = logits(model)
        adapter = install_coord_offset_adapter(model, coord_ids=COORD_IDS, dtype=dtype)
        assert adapter.embed_offset.dtype == expected
        assert torch.equal(logits(model), base_logits)
        randomise(adapter)
        moved = logits(model)
        assert moved.dtype == torch.bfloat16
        baked = fresh().to(torch.bfloat16)
        with torch.no_grad():
            baked.get_input_embeddings().weight[FIRST : FIRST + 1000] += adapter.embed_offset
        assert float((moved - logits(baked)).abs().max()) < 0.05 * float(moved.abs().max())
        model(input_ids=IDS, labels=IDS).loss.backward()
        assert adapter.embed_offset.grad.isfinite().all()


@pytest.mark.parametrize("ids", [COORD_IDS, SCATTERED], ids=["contiguous", "scattered"])
@pytest.mark.parametrize("tie_head", [True, False])
def test_a_float32_head_of_a_bfloat16_model_is_exact_at_coord_columns_too(tie_head, ids):
    model = fresh().to(torch.bfloat16)
    adapter = randomise(install_coord_offset_adapter(model, coord_ids=ids, tie_head=tie_head), scale=1.0)
    head = model.get_output_embeddings()
    hidden = 5 * torch.randn(2, 3, 128).to(torch.bfloat16)
    with torch.no_grad(), float32_head(model):
        found = head(hidden)[..., list(ids)]
    truth = hidden.double() @ (head.weight[list(ids)].double() + head_offset_table(adapter).double()).detach().T
    torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=1e-4)
    assert not torch.equal(found, found.bfloat16().float())  # control: there was something to round


def _both(steps: int, *, rate: float):
    """Train our adapter and PEFT's trainable tokens alike; return both tables, ours with the base's rows added."""
    ours, theirs = fresh(), fresh()
    start = ours.get_input_embeddings().weight.detach()[FIRST : FIRST + 1000].clone()
    adapter = install_coord_offset_adapter(ours, coord_ids=COORD_IDS)
    ours.requires_grad_(False)
    adapter.requires_grad_(True)
    config = LoraConfig(r=1, target_modules=["q_proj"], trainable_token_indices={"embed_tokens": list(COORD_IDS)})
    peft = get_peft_model(theirs, config)
    named = [p for name, p in peft.named_parameters() if "trainable_tokens_delta" in name and p.requires_grad]
    (rows,) = {id(p): p for p in named}.values()  # embedding and head share them, as ours do
    assert torch.equal(rows, start)
    optimizers = [torch.optim.SGD([parameter], lr=rate) for parameter in (adapter.embed_offset, rows)]
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        ids = torch.randint(0, 1641, (2, 24), generator=generator)
        losses = []
        for model, optimizer in zip((ours, peft), optimizers, strict=True):
            model.zero_grad()
            losses.append(model(input_ids=ids, labels=ids).loss)
            losses[-1].backward()
            optimizer.step()
        torch.testing.assert_close(*losses, rtol=1e-5, atol=0)
    return start, start + adapter.embed_offset.detach(), rows.detach()


def test_it_equals_pefts_trainable_tokens_over_twenty_steps():
    """PEFT replaces rows of the tied table, we add to them: plain SGD moves both alike."""
    start, moved, rows = _both(20, rate=0.5)
    assert float((moved - start).abs().max()) > 1e-2  # control: twenty steps moved them
    torch.testing.assert_close(moved, rows, rtol=0, atol=1e-5)
    _, early, _ = _both(19, rate=0.5)  # control: one step is more than the tolerance
    assert float((early - rows).abs().max()) > 1e-4


def _generated(model, **settings):
    defaults = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(IDS)}
    return model.generate(**(defaults | {"input_ids": IDS} | settings))


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}, {"use_cache": False}], ids=["greedy", "beams", "uncached"])
def test_generation_equals_that_of_a_baked_table(settings):
    model, baked = installed(), fresh()
    adapter = randomise(model, scale=0.5)
    with torch.no_grad():
        baked.get_input_embeddings().weight[FIRST : FIRST + 1000] += adapter.embed_offset
    tokens = _generated(model, **settings)
    assert torch.equal(tokens, _generated(baked, **settings))
    assert any(int(token) in COORD_IDS for token in tokens[0, IDS.shape[1] :])  # control: offsets took part
    assert not torch.equal(tokens, _generated(fresh(), **settings))


def test_embeddings_given_directly_carry_the_offsets_of_their_lookup():
    model = installed()
    randomise(model, scale=0.5)
    with torch.no_grad():
        embedded = model.get_input_embeddings()(IDS)
        given = model(inputs_embeds=embedded, attention_mask=torch.ones_like(IDS), use_cache=False).logits
    assert torch.equal(given, logits(model))
    tokens = _generated(model, input_ids=None, inputs_embeds=embedded)
    assert torch.equal(tokens, _generated(model)[:, IDS.shape[1] :])
