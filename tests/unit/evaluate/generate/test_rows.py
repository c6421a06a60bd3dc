"""Rows that take the next image where an answer ends: the same answers as image by image, in fewer steps."""

import contextlib
import copy
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from coordexp.coord_tokens.grammar.constrain import ObjectGrammar
from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.evaluate.generate import generation, rows
from coordexp.evaluate.generate.generation import GeneratedSequence, generate_sequences
from coordexp.evaluate.generate.rows import _attend, row_attention
from coordexp.train.setup.zero import autocast_forward
from tests.unit.evaluate.generate.plain_generate import plain_answers

NUMBERS = list(range(1, 14))
OPTIONS = {"curves_of": [3, 11]}


def grammar_of(base) -> ObjectGrammar:
    return ObjectGrammar.for_model(base.vocab, base.tokenizer, vocab_size=base.vocab_size)


def answers(base, numbers=NUMBERS, *, batch_size: int, constrained: bool = True, **options) -> list[GeneratedSequence]:
    """All images in one queue, in the order of their numbers."""
    limits = {"max_new_tokens": options.pop("max_new_tokens", 40)}
    return generate_sequences(
        base.model,
        [base.sample(number) for number in numbers],
        spec=options.pop("spec", base.spec(**limits)),
        grammar=grammar_of(base) if constrained else None,
        queues=[range(len(numbers))],
        batch_size=batch_size,
        **options,
    )


@contextlib.contextmanager
def ending_at_random(base, *, seed: int = 0):
    """Make the end likely at some tokens and not at others, so that lengths differ much; ten times the rounding."""
    head = base.model.lm_head
    direction = torch.randn(head.in_features, generator=torch.Generator().manual_seed(seed))
    ends = [base.vocab.end_id, base.vocab.obj_start_id]

    def hook(module, args, logits):
        odds = (args[0] @ direction.to(args[0])).sin() * 30
        logits = logits.clone()
        logits[..., ends[0]] += odds.clamp(min=0)
        return logits

    handle = head.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def counted_steps(base):
    """Rows of each forward pass that predicts tokens."""
    found: list[int] = []
    handle = base.model.lm_head.register_forward_hook(lambda module, args, logits: found.append(args[0].shape[0]))
    try:
        yield found
    finally:
        handle.remove()


def same(found: GeneratedSequence, wanted: GeneratedSequence) -> None:
    assert (found.image_id, found.ids, found.truncated) == (wanted.image_id, wanted.ids, wanted.truncated)
    for name, values in vars(wanted.statistics).items():
        assert np.array(getattr(found.statistics, name)) == pytest.approx(np.array(values), abs=1e-3, rel=1e-3), name


@pytest.mark.parametrize("constrained", [True, False])
def test_answers_are_those_of_plain_generate(base, constrained: bool) -> None:
    with ending_at_random(base):
        ids, log_probs = plain_answers(
            base, NUMBERS, grammar=grammar_of(base) if constrained else None, max_new_tokens=40
        )
        found = answers(base, batch_size=4, constrained=constrained)
    assert len({len(one) for one in ids.values()}) > 3, "lengths must differ, or no row would change hands"
    assert len({base.sample(number).length for number in NUMBERS}) > 1
    for number, seq in zip(NUMBERS, found, strict=True):
        ended = [] if seq.truncated else ids[number][-1:]
        assert [*seq.ids, *ended] == ids[number]
        assert seq.statistics.log_probs == pytest.approx(log_probs[number][: len(seq.ids)], abs=1e-3)


@pytest.fixture(scope="module")
def alone(native) -> list[GeneratedSequence]:
    """Each image by itself."""
    with ending_at_random(native):
        return [answers(native, [number], batch_size=1, **OPTIONS)[0] for number in NUMBERS]


@pytest.mark.parametrize(("batch_size", "every"), [(2, 1), (2, 3), (5, 1), (13, 4), (40, 3)])
def test_an_answer_is_the_same_in_whatever_row(native, alone, batch_size: int, every: int, monkeypatch) -> None:
    monkeypatch.setitem(generation._LOOK_EVERY, "cpu", every)
    with ending_at_random(native):
        together = answers(native, batch_size=batch_size, **OPTIONS)
    assert len({len(seq.ids) for seq in alone}) > 5
    for found, wanted in zip(together, alone, strict=True):
        same(found, wanted)
        assert (found.coord_probs is None) == (found.image_id not in (3, 11))
        if wanted.coord_probs is not None:
            assert found.coord_probs == pytest.approx(wanted.coord_probs, abs=1e-4)


def test_a_row_is_given_on_as_soon_as_its_answer_ends(native) -> None:
    with ending_at_random(native), counted_steps(native) as passes:
        found = answers(native, batch_size=4)
    lengths = [len(seq.ids) + (not seq.truncated) for seq in found]
    prompts = [size for size in passes if size < 4]
    steps = len(passes) - len(NUMBERS)  # four rows: a prompt at a time
    assert Counter(prompts)[1] >= len(NUMBERS)
    waiting = sum(max(lengths[at : at + 4]) for at in range(0, len(lengths), 4))
    assert sum(lengths) / 4 <= steps + len(NUMBERS) / 4 <= waiting
    assert steps < 0.9 * waiting, "a batch that waits for its longest answer takes more steps"


def test_attention_reaches_as_far_as_the_longest_row(native) -> None:
    widths: list[int] = []
    handle = native.model.model.language_model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(0 if (mask := kwargs["attention_mask"]) is None else mask.shape[-1]),
        with_kwargs=True,
    )
    try:
        with ending_at_random(native):
            found = answers(native, batch_size=2)
    finally:
        handle.remove()
    longest = max(native.sample(seq.image_id).length + len(seq.ids) - seq.truncated for seq in found)
    assert widths.count(0) == len(NUMBERS), "prompts have no mask"
    assert max(widths) == longest
    assert len({width for width in widths if width}) > 20


def test_rows_are_let_go_when_no_image_waits(native) -> None:
    with ending_at_random(native), counted_steps(native) as passes:
        answers(native, batch_size=16, numbers=list(range(1, 17)))
    steps = passes[4:]  # prompts go in fours
    assert steps[0] == 16
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < 8


def test_limits_of_length_one_and_two(native) -> None:
    for limit in (1, 2):
        found = answers(native, batch_size=3, max_new_tokens=limit)
        assert {len(seq.ids) + (not seq.truncated) for seq in found} == {limit}
        whole = answers(native, batch_size=3, max_new_tokens=5)
        assert [seq.ids[:limit] for seq in whole] == [seq.ids[:limit] for seq in found]


def test_attention_of_grouped_heads_by_hand() -> None:
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(3, 6, 1, 8, generator=draw)
    key, value = (torch.randn(3, 2, 7, 8, generator=draw) for _ in range(2))
    sees = torch.rand(3, 1, 1, 7, generator=draw) < 0.6
    sees[..., 0] = True
    found, _ = _attend(torch.nn.Module(), query, key, value, sees, scaling=0.3)
    assert found.shape == (3, 1, 6, 8)
    for row in range(3):
        for head in range(6):
            scores = (query[row, head, 0] @ key[row, head // 3].T) * 0.3
            weights = F.softmax(scores.masked_fill(~sees[row, 0, 0], -torch.inf), dim=0)
            assert found[row, 0, head] == pytest.approx(weights @ value[row, head // 3], abs=1e-5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_any_attention_of_the_model_gives_the_same_and_stays_as_it_was(native, attention: str) -> None:
    wanted = answers(native, batch_size=5)
    config = native.model.model.language_model.config
    native.model.set_attn_implementation(attention)
    try:
        for found, one in zip(answers(native, batch_size=5), wanted, strict=True):
            same(found, one)
        assert config._attn_implementation == attention
        with contextlib.suppress(ZeroDivisionError), row_attention(native.model.model.language_model):
            assert config._attn_implementation == rows._ATTENTION
            raise ZeroDivisionError
        assert config._attn_implementation == attention
    finally:
        native.model.set_attn_implementation("sdpa")


def test_without_objects_to_write_every_answer_is_empty(native) -> None:
    end = torch.tensor([native.vocab.end_id])
    handle = native.model.lm_head.register_forward_hook(lambda module, args, logits: logits.index_fill(-1, end, 1e3))
    try:
        found = answers(native, batch_size=4, spec=replace(native.spec(), max_new_tokens=9))
    finally:
        handle.remove()
    assert [seq.image_id for seq in found] == NUMBERS
    assert {seq.ids for seq in found} == {()}
    assert not any(seq.truncated for seq in found)


def test_a_model_that_trains_whole_in_bfloat16_answers_in_it(native) -> None:
    seen: set[torch.dtype] = set()
    inside = native.model.model.language_model.layers[0].mlp.register_forward_hook(
        lambda module, args, output: seen.add(output.dtype)
    )
    plain = answers(native, [1, 2], batch_size=2)
    assert seen == {torch.float32}
    seen.clear()
    forward = native.model.forward
    autocast_forward(native.model, device_type="cpu")
    try:
        in_half = answers(native, [1, 2], batch_size=2)
    finally:
        native.model.forward = forward
        del native.model._original_forward
        inside.remove()
    assert seen == {torch.bfloat16}
    assert [seq.image_id for seq in in_half] == [1, 2]
    assert in_half[0].statistics.log_probs[0] == pytest.approx(plain[0].statistics.log_probs[0], rel=0.05)


def test_offsets_act_after_the_head_was_replaced(native) -> None:
    model = copy.deepcopy(native.model)
    adapter = install_coord_offset_adapter(model, coord_ids=native.vocab.coord_ids)
    with torch.no_grad():
        adapter.embed_offset.normal_(std=0.5, generator=torch.Generator().manual_seed(0))
    moved = replace(native, model=model)
    wanted = answers(moved, [1, 2], batch_size=2)
    assert wanted != answers(native, [1, 2], batch_size=2)
    model.resize_token_embeddings(native.vocab_size)
    model.lm_head = copy.deepcopy(model.lm_head)
    model.lm_head._forward_hooks.clear()
    for found, one in zip(answers(moved, [1, 2], batch_size=2), wanted, strict=True):
        same(found, one)
