"""The coord-offset adapter on a tiny Qwen3-VL, bare and under PEFT."""

import copy

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import PreTrainedTokenizerBase, Qwen3VLForConditionalGeneration

from coordexp.coord_tokens.offset_adapter import (
    CoordOffsetAdapter,
    active_offset,
    head_offset_table,
    inner_model,
    install_coord_offset_adapter,
    reattach_coord_offset_hooks,
)
from coordexp.coord_tokens.offset_ids import DEFAULT_COORD_IDS
from coordexp.coord_tokens.vocab import expand_vocab
from coordexp.errors import TokenizerError
from coordexp.model.head_bypass import pass_through_head
from coordexp.model.lora import apply_tuning
from coordexp.model.tiny import build_model, build_tokenizer

FIRST = 641  # of the tiny tokenizer's coord ids
COORD_IDS = range(FIRST, FIRST + 1000)
SCATTERED = [FIRST + 7, FIRST + 3, FIRST + 900]  # neither contiguous nor ascending
IDS = torch.tensor([[5, 6, FIRST + 3, FIRST + 999, 7, FIRST + 7, FIRST - 1]])
TIES = [(True, True), (True, False), (False, True), (False, False)]


@pytest.fixture(scope="module")
def bases() -> dict[bool, tuple[Qwen3VLForConditionalGeneration, PreTrainedTokenizerBase]]:
    made = {}
    for tied in (True, False):
        tokenizer = build_tokenizer()
        model = build_model(tokenizer, tie_word_embeddings=tied).eval()
        expand_vocab(model, tokenizer, init="numeric")
        made[tied] = (model, tokenizer)
    return made


def _model(bases, tied=True) -> Qwen3VLForConditionalGeneration:
    return copy.deepcopy(bases[tied][0])


@torch.no_grad()
def _randomise(adapter: CoordOffsetAdapter, scale: float = 0.1) -> None:
    generator = torch.Generator().manual_seed(3)
    for table in adapter.parameters():
        table.copy_(torch.randn(table.shape, generator=generator) * scale)


@torch.no_grad()
def _logits(model, ids: Tensor = IDS) -> Tensor:
    return model(input_ids=ids, use_cache=False).logits


def _peft(model, **kwargs) -> PeftModel:
    settings = {"tuning": "lora", "rank": 4, "alpha": 8.0, "dropout": 0.0, "vision": True, "seed": 0} | kwargs
    return apply_tuning(model, **settings)


@pytest.mark.parametrize(("tied", "tie_head"), TIES)
def test_installing_changes_no_output(bases, tied, tie_head):
    model = _model(bases, tied)
    before = _logits(model)
    adapter = install_coord_offset_adapter(model, coord_ids=COORD_IDS, tie_head=tie_head)
    assert torch.equal(_logits(model), before)
    assert adapter.tie_head is tie_head
    assert [name for name, _ in adapter.named_parameters()] == ["embed_offset", "head_offset"][: 2 - tie_head]


@pytest.mark.parametrize("ids", [COORD_IDS, SCATTERED], ids=["contiguous", "scattered"])
@pytest.mark.parametrize(("tied", "tie_head"), TIES)
def test_only_listed_ids_change_and_by_their_rows(bases, tied, tie_head, ids):
    model = _model(bases, tied)
    table = model.get_input_embeddings().weight.detach().clone()
    head_table = model.get_output_embeddings().weight.detach().clone()
    every_id = torch.arange(len(table)).unsqueeze(0)
    hidden = torch.randn(1, 3, 128)
    base_logits = model.get_output_embeddings()(hidden)
    adapter = install_coord_offset_adapter(model, coord_ids=ids, tie_head=tie_head)
    _randomise(adapter)

    embedded = model.get_input_embeddings()(every_id)[0]
    logits = model.get_output_embeddings()(hidden)
    listed = torch.zeros(len(table), dtype=torch.bool)
    listed[list(ids)] = True
    assert torch.equal(embedded[~listed], table[~listed])
    assert torch.equal(logits[..., ~listed], base_logits[..., ~listed])
    assert torch.equal(embedded[list(ids)], table[list(ids)] + adapter.embed_offset)
    head_rows = head_table[list(ids)] + head_offset_table(adapter)
    torch.testing.assert_close(logits[..., list(ids)], hidden @ head_rows.T, rtol=1e-5, atol=1e-5)
    assert not torch.equal(embedded[list(ids)], table[list(ids)])  # control: the offsets do act
    if not tie_head:
        assert not torch.equal(adapter.embed_offset, head_offset_table(adapter))


@pytest.mark.parametrize(("tied", "tie_head"), TIES)
def test_only_the_adapter_gets_gradients_at_the_tables(bases, tied, tie_head):
    model = _model(bases, tied)
    adapter = install_coord_offset_adapter(model, coord_ids=COORD_IDS, tie_head=tie_head)
    model(input_ids=IDS, labels=IDS).loss.backward()
    assert model.get_input_embeddings().weight.grad is None
    assert model.get_output_embeddings().weight.grad is None
    assert all(float(table.grad.abs().sum()) > 0 for table in adapter.parameters())
    if not tie_head:  # the embedding table learns only rows that were looked up
        used = adapter.embed_offset.grad.abs().sum(dim=1).nonzero().flatten() + FIRST
        assert used.tolist() == sorted({int(i) for i in IDS.flatten() if int(i) in COORD_IDS})


def test_gradients_equal_those_of_a_trainable_table(bases):
    reference = _model(bases)
    reference.requires_grad_(False)
    table = reference.get_input_embeddings().weight.requires_grad_(True)
    reference(input_ids=IDS, labels=IDS).loss.backward()
    model = _model(bases)
    adapter = install_coord_offset_adapter(model, coord_ids=COORD_IDS)
    model(input_ids=IDS, labels=IDS).loss.backward()
    torch.testing.assert_close(adapter.embed_offset.grad, table.grad[FIRST : FIRST + 1000], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("ids", [range(2, 5), [4, 2]], ids=["contiguous", "scattered"])
@pytest.mark.parametrize("tie_head", [True, False])
def test_gradcheck(ids, tie_head):
    torch.manual_seed(0)
    adapter = CoordOffsetAdapter(list(ids), hidden_size=3, tie_head=tie_head, dtype=torch.float64)
    _randomise(adapter)
    hidden = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    logits = torch.randn(2, 2, 7, dtype=torch.float64, requires_grad=True)
    embeddings = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([[2, 0], [4, 6]])
    tables = tuple(adapter.parameters())
    assert torch.autograd.gradcheck(lambda z, h, *_: adapter.add_to_logits(z * 1.0, h), (logits, hidden, *tables))
    assert torch.autograd.gradcheck(lambda e, *_: adapter.add_to_embeddings(e, tokens), (embeddings, tables[0]))


def test_ids_may_be_a_range_a_mapping_or_a_list(bases):
    adapters = [
        install_coord_offset_adapter(_model(bases), coord_ids=ids)
        for ids in (COORD_IDS, {"start": FIRST, "end": FIRST + 999}, list(COORD_IDS))
    ]
    assert all(adapter.first_id == FIRST and adapter.num_ids == 1000 for adapter in adapters)
    assert all(adapter.coord_ids.tolist() == list(COORD_IDS) for adapter in adapters)


def test_default_ids_are_those_of_qwen3_vl_without_the_wildcard(bases):
    assert (DEFAULT_COORD_IDS[0], DEFAULT_COORD_IDS[-1], len(DEFAULT_COORD_IDS)) == (151_670, 152_669, 1000)
    with pytest.raises(TokenizerError, match="reach 152669 but the model has 1641 rows"):
        install_coord_offset_adapter(_model(bases))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "empty"),
        ([5, 5], "distinct"),
        ([-1], "not negative"),
        ({"first": 1}, "start and end"),
        ([1641], "reach 1641"),
        (range(FIRST - 1, FIRST + 1000), r"hold 640, which is '<\|coord_\*\|>'"),
        (range(FIRST, FIRST + 999), "lack 1 coord tokens"),
    ],
)
def test_wrong_ids_are_refused_and_leave_the_model_alone(bases, ids, message):
    model = _model(bases)
    with pytest.raises(TokenizerError, match=message):
        install_coord_offset_adapter(model, coord_ids=ids, tokenizer=bases[True][1])
    assert active_offset(model) is None
    assert model.get_input_embeddings().weight.requires_grad


def test_it_is_installed_once(bases):
    model = _model(bases)
    install_coord_offset_adapter(model, coord_ids=COORD_IDS)
    with pytest.raises(ValueError, match="already has"):
        install_coord_offset_adapter(model, coord_ids=COORD_IDS)


@pytest.mark.parametrize("tuning", ["lora", "dora"])
@pytest.mark.parametrize(("tied", "tie_head"), TIES)
def test_under_peft_the_copy_trains_and_disabling_gives_the_base(bases, tuning, tied, tie_head):
    model = _model(bases, tied)
    base_logits = _logits(model)
    original = install_coord_offset_adapter(model, coord_ids=COORD_IDS, tie_head=tie_head)
    wrapped = _peft(model, tuning=tuning).eval()
    active = active_offset(wrapped)
    assert active is not original
    torch.testing.assert_close(_logits(wrapped), base_logits, rtol=0, atol=1e-6)

    wrapped(input_ids=IDS, labels=IDS).loss.backward()
    trainable = {name: parameter for name, parameter in wrapped.named_parameters() if parameter.requires_grad}
    assert all("lora_" in name or "coord_offset_adapter.modules_to_save" in name for name in trainable)
    assert original.embed_offset.grad is None
    assert all(table.grad is not None for table in active.parameters())
    _randomise(active)
    changed = _logits(wrapped)
    assert not torch.equal(changed, base_logits)
    with wrapped.disable_adapter():
        assert torch.equal(_logits(wrapped), base_logits)
    assert torch.equal(_logits(wrapped), changed)


def test_reattaching_twice_adds_nothing_twice(bases):
    model = _model(bases)
    install_coord_offset_adapter(model, coord_ids=COORD_IDS)
    wrapped = _peft(model).eval()
    _randomise(active_offset(wrapped))
    before = _logits(wrapped)
    for _ in range(2):
        assert reattach_coord_offset_hooks(wrapped) is active_offset(wrapped)
    assert torch.equal(_logits(wrapped), before)
    assert reattach_coord_offset_hooks(_model(bases)) is None


def test_reattaching_follows_a_replaced_table(bases):
    model = _model(bases)
    adapter = install_coord_offset_adapter(model, coord_ids=COORD_IDS)
    _randomise(adapter)
    before = _logits(model)
    weight = model.get_input_embeddings().weight
    model.set_input_embeddings(torch.nn.Embedding(*weight.shape, _weight=weight))
    assert not torch.allclose(_logits(model), before)  # the new module has no hook
    assert reattach_coord_offset_hooks(model) is adapter
    assert torch.equal(_logits(model), before)


def test_a_copied_model_has_an_adapter_of_its_own(bases):
    model = _model(bases)
    install_coord_offset_adapter(model, coord_ids=COORD_IDS)
    twin = copy.deepcopy(model)
    before = _logits(model)
    _randomise(active_offset(twin))
    assert torch.equal(_logits(model), before)
    assert not torch.equal(_logits(twin), before)


def test_offsets_of_other_ids_are_not_loaded(bases):
    model, other = _model(bases), _model(bases)
    saved = install_coord_offset_adapter(model, coord_ids=COORD_IDS).state_dict()
    adapter = install_coord_offset_adapter(other, coord_ids=range(FIRST - 1, FIRST + 999))
    with pytest.raises(TokenizerError, match=r"for 1000 ids 641\.\.1640, the installed adapter has 1000 ids 640"):
        adapter.load_state_dict(saved)


def test_bfloat16_and_a_float32_table_on_it(bases):
    for dtype, expected in (("auto", torch.bfloat16), ("float32", torch.float32)):
        model = _model(bases).to(torch.bfloat16)
        base_logits = _logits(model)
        adapter = install_coord_offset_adapter(model, coord_ids=COORD_IDS, dtype=dtype)
        assert adapter.embed_offset.dtype == expected
        assert torch.equal(_logits(model), base_logits)
        _randomise(adapter)
        logits = _logits(model)
        assert logits.dtype == torch.bfloat16
        baked = _model(bases).to(torch.bfloat16)
        with torch.no_grad():
            baked.get_input_embeddings().weight[FIRST : FIRST + 1000] += adapter.embed_offset
        assert float((logits - _logits(baked)).abs().max()) < 0.05 * float(logits.abs().max())
        model(input_ids=IDS, labels=IDS).loss.backward()
        assert adapter.embed_offset.grad.isfinite().all()


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_checkpointing_gives_the_same_gradients(bases, use_reentrant):
    gradients = []
    for checkpointing in (False, True):
        model = _model(bases)
        install_coord_offset_adapter(model, coord_ids=COORD_IDS)
        wrapped = _peft(model).train()
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
            model.enable_input_require_grads()
        wrapped(input_ids=IDS, labels=IDS, use_cache=False).loss.backward()
        gradients.append([p.grad for p in wrapped.parameters() if p.grad is not None])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, checkpointed, rtol=1e-5, atol=1e-7)


def test_generation_with_a_cache_equals_that_of_a_baked_table(bases):
    model, baked = _model(bases), _model(bases)
    adapter = install_coord_offset_adapter(model, coord_ids=COORD_IDS)
    _randomise(adapter, scale=0.5)
    with torch.no_grad():
        baked.get_input_embeddings().weight[FIRST : FIRST + 1000] += adapter.embed_offset
    settings = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(IDS)}
    tokens = model.generate(input_ids=IDS, **settings)
    assert torch.equal(tokens, baked.generate(input_ids=IDS, **settings))
    assert any(int(token) in COORD_IDS for token in tokens[0, IDS.shape[1] :])  # control: offsets took part


@pytest.mark.parametrize("wrap", [False, True], ids=["plain", "peft"])
def test_pass_through_head_gives_hidden_states_and_restores(bases, wrap):
    model = _model(bases)
    install_coord_offset_adapter(model, coord_ids=COORD_IDS)
    outer = (_peft(model, tuning="dora") if wrap else model).eval()
    _randomise(active_offset(outer))
    before = _logits(outer)
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
    assert torch.equal(_logits(outer), before)


def test_it_equals_pefts_trainable_tokens_over_twenty_steps(bases):
    """PEFT replaces rows of the tied table, we add to them: plain SGD moves both alike."""
    ours, theirs = _model(bases), _model(bases)
    adapter = install_coord_offset_adapter(ours, coord_ids=COORD_IDS)
    ours.requires_grad_(False)
    adapter.requires_grad_(True)
    config = LoraConfig(r=1, target_modules=["q_proj"], trainable_token_indices={"embed_tokens": list(COORD_IDS)})
    wrapped = get_peft_model(theirs, config)
    rows = [p for name, p in wrapped.named_parameters() if "trainable_tokens_delta" in name and p.requires_grad]
    start = ours.get_input_embeddings().weight.detach()[FIRST : FIRST + 1000].clone()
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        ids = torch.randint(0, 1641, (2, 24), generator=generator)
        for model, parameters in ((ours, list(adapter.parameters())), (wrapped, rows[:1])):
            model(input_ids=ids, labels=ids).loss.backward()
            with torch.no_grad():
                for parameter in parameters:
                    parameter -= 0.5 * parameter.grad
                    parameter.grad = None
            model.zero_grad()
    moved = start + adapter.embed_offset.detach()
    assert float((moved - start).abs().max()) > 1e-2  # control: twenty steps moved them
    torch.testing.assert_close(moved, rows[0].detach(), rtol=0, atol=1e-5)
