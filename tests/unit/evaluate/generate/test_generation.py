"""Answers in rows that are given on: what a plain forward pass and transformers' own ``generate`` say of each token."""

import contextlib
import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.expectation import expected_values
from coordexp.coord_tokens.grammar.constrain import plain_text_ids
from coordexp.coord_tokens.grammar.parse import parse_generated
from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.data.batch import collate
from coordexp.data.images.patches import pixel_values
from coordexp.evaluate.generate import generation
from coordexp.evaluate.generate.answer import Answer, expected_of_top_tokens, mean_and_width
from coordexp.evaluate.generate.generation import generate_queue, image_queues
from coordexp.evaluate.generate.qwen_json import JsonFormat
from coordexp.metrics import TOP_TOKENS
from coordexp.train.setup.zero import autocast_forward
from examples.expected_boxes import expected_coordinate
from tests.support.plain_generate import plain_answers

NUMBERS = list(range(1, 14))
COLUMNS = ("log_probs", "coord_mass", "expected", "width")


def same(found: Answer, wanted: Answer) -> None:
    assert (found.image_id, found.ids.tolist(), found.truncated) == (
        wanted.image_id, wanted.ids.tolist(), wanted.truncated,
    )  # fmt: skip
    for name in COLUMNS:
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), abs=1e-3, rel=1e-3), name


@contextlib.contextmanager
def on_logits(base, hook):
    handle = base.model.lm_head.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def ending_at_random(base):
    """Make the end likely at some tokens and not at others, so that lengths differ much; ten times the rounding."""
    direction = torch.randn(base.model.lm_head.in_features, generator=torch.Generator().manual_seed(0))

    def hook(module, args, logits):
        logits = logits.clone()
        logits[..., base.vocab.end_id] += ((args[0] @ direction.to(args[0])).sin() * 30).clamp(min=0)
        return logits

    return on_logits(base, hook)


@contextlib.contextmanager
def counted_steps(base):
    """Rows of each forward pass that predicts tokens."""
    found: list[int] = []
    with on_logits(base, lambda module, args, logits: found.append(args[0].shape[0])):
        yield found


def raw_logits(base, number: int, ids: Sequence[int]) -> torch.Tensor:
    """Teacher-forced logits ``[T, V]`` that predict ``ids``, from one plain forward pass."""
    sample, image_id = base.sample(number), base.model.config.image_token_id
    batch = collate([sample], pad_id=0, image_token_id=image_id)
    ids_1L = torch.tensor([[*sample.prompt_ids, *ids]])
    with torch.no_grad():
        logits = base.model(
            input_ids=ids_1L,
            attention_mask=torch.ones_like(ids_1L),
            mm_token_type_ids=(ids_1L == image_id).long(),
            pixel_values=pixel_values(batch.patches, base.image_spec),
            image_grid_thw=batch.image_grid_thw,
        ).logits
    return logits[0, len(sample.prompt_ids) - 1 : -1]


@pytest.mark.parametrize("constrained", [True, False])
def test_recorded_numbers_are_those_of_a_plain_forward_pass(base, constrained: bool) -> None:
    for answer in base.answers([1, 2, 3], constrained=constrained, max_new_tokens=24, curves_of=[2]):
        logits = raw_logits(base, answer.image_id, answer.ids.tolist())
        log_probs = logits.log_softmax(-1)
        coords = slice(base.vocab.coord_ids.start, base.vocab.coord_ids.stop)
        probs = logits[:, coords].softmax(-1)
        mean, width = mean_and_width(probs)
        emitted = log_probs.gather(1, torch.tensor(answer.ids).unsqueeze(1)).squeeze(1)
        assert answer.log_probs == pytest.approx(emitted.numpy(), abs=1e-4)
        assert answer.expected == pytest.approx(mean.numpy(), abs=1e-4)
        assert answer.width == pytest.approx(width.numpy(), rel=1e-3, abs=1e-2)
        assert answer.coord_mass == pytest.approx(log_probs[:, coords].exp().sum(-1).numpy(), abs=1e-4)
        assert (answer.probs_TK is None) == (answer.image_id != 2)
        if answer.probs_TK is not None:
            assert answer.probs_TK == pytest.approx(probs.numpy(), abs=1e-4)
        # The mask moved the choice somewhere, or this test would not see a score bent by it.
        assert (answer.ids.tolist() == logits.argmax(-1).tolist()) != constrained


def test_mean_and_width_by_hand() -> None:
    # Bins 200 and 400, half each: mean 300, distance 100. All on bin 7: width 0. Flat: sqrt((K^2 - 1) / 12).
    # Far out, where E[k^2] - E[k]^2 in float32 gives 0.25 or nothing: sqrt(.99 x .01).
    p = torch.zeros(4, NUM_BINS)
    p[0, [200, 400]], p[1, 7], p[2] = 0.5, 1.0, 1 / NUM_BINS
    p[3, 998], p[3, 999] = 0.99, 0.01
    mean, width = mean_and_width(p)
    assert mean[:3].tolist() == pytest.approx([0.3, 0.007, 0.4995], abs=1e-6)
    assert width.tolist() == pytest.approx([100, 0, ((NUM_BINS**2 - 1) / 12) ** 0.5, (0.99 * 0.01) ** 0.5], rel=1e-3)
    logits = torch.randn(50, NUM_BINS, generator=torch.Generator().manual_seed(0)) * 4
    assert torch.equal(mean_and_width(logits.softmax(dim=1))[0], expected_values(logits)), (
        "that of training, to the bit"
    )


@pytest.mark.parametrize("constrained", [True, False])
def test_what_a_client_of_a_server_computes_is_recorded(native, constrained: bool) -> None:
    """The example's plain Python, given what a server returns: the likeliest tokens, and the one that was chosen."""
    for answer in native.answers([1, 2, 3], constrained=constrained, max_new_tokens=24):
        log_probs_TV = raw_logits(native, answer.image_id, answer.ids.tolist()).log_softmax(-1)
        coord_positions = [at for at, token in enumerate(answer.ids.tolist()) if token in native.vocab.coord_ids]
        assert coord_positions
        for row, num_tokens in enumerate(TOP_TOKENS):
            for position in coord_positions:
                returned = log_probs_TV[position].topk(num_tokens)
                top = dict(zip(returned.indices.tolist(), returned.values.tolist(), strict=True))
                chosen = int(answer.ids[position])
                top[chosen] = float(log_probs_TV[position, chosen])
                texts = native.tokenizer.convert_ids_to_tokens(list(top))
                mean = expected_coordinate(dict(zip(texts, top.values(), strict=True)))
                assert answer.served[row, position] == pytest.approx(mean, abs=1e-4)


def test_the_likeliest_tokens_by_hand() -> None:
    """Bins 100 and 300 have .4 and .2, a word .3: of five tokens the mean is (.4 x 100 + .2 x 300) / .6 bins."""
    numbers = range(10, 10 + NUM_BINS)
    probs_V = torch.full((1_100,), 1e-9)
    probs_V[[110, 310, 3]] = torch.tensor([0.4, 0.2, 0.3])
    (five, *_, most) = expected_of_top_tokens(probs_V.log().unsqueeze(0), torch.tensor([110]), numbers)
    assert float(five) == pytest.approx((0.4 * 100 + 0.2 * 300) / 0.6 / 1000, abs=1e-5)
    assert float(most) == pytest.approx(float(five), abs=1e-5)
    # Five words are likelier than any bin: the token that a grammar chose is all that a server returns of the bins.
    probs_V[:5] = 0.5
    (five, twenty, _) = expected_of_top_tokens(probs_V.log().unsqueeze(0), torch.tensor([310]), numbers)
    assert float(five) == pytest.approx(0.3, abs=1e-6)
    assert float(twenty) == pytest.approx((0.4 * 100 + 0.2 * 300) / 0.6 / 1000, abs=1e-5)
    no_bin = expected_of_top_tokens(probs_V.log().unsqueeze(0), torch.tensor([3]), numbers)
    assert float(no_bin[0]) == 0


def test_without_coord_tokens_only_log_probs_are_kept(native) -> None:
    plain = replace(native.answering, answers=JsonFormat(native.tokenizer))
    for answer, other in zip(
        native.answers([1, 2], constrained=False, answering=plain, curves_of=[1]),
        native.answers([1, 2], constrained=False, curves_of=[1]),
        strict=True,
    ):
        assert answer.ids.tolist() == other.ids.tolist()
        assert answer.log_probs.tolist() == other.log_probs.tolist()
        assert {*answer.coord_mass} == {0.0}
        assert (len(answer.expected), len(answer.width), answer.probs_TK) == (0, 0, None)


@pytest.mark.parametrize("constrained", [True, False])
def test_answers_are_those_of_plain_generate(base, constrained: bool) -> None:
    with ending_at_random(base):
        grammar = base.answering.grammar if constrained else None
        ids, log_probs = plain_answers(base, NUMBERS, grammar=grammar, max_new_tokens=40)
        found = base.answers(NUMBERS, constrained=constrained)
    assert len({len(one) for one in ids.values()}) > 3, "lengths must differ, or no row would change hands"
    assert len({base.sample(number).length for number in NUMBERS}) > 1
    for number, answer in zip(NUMBERS, found, strict=True):
        ended = [] if answer.truncated else ids[number][-1:]
        assert [*answer.ids, *ended] == ids[number]
        assert answer.log_probs == pytest.approx(log_probs[number][: len(answer.ids)], abs=1e-3)


@pytest.fixture(scope="module")
def alone(native) -> list[Answer]:
    """Each image by itself."""
    with ending_at_random(native):
        return [native.answers([number], batch_size=1, curves_of=[3, 11])[0] for number in NUMBERS]


@pytest.mark.parametrize(("batch_size", "every"), [(2, 3), (5, 1)])
def test_an_answer_is_the_same_in_whatever_row(native, alone, batch_size: int, every: int, monkeypatch) -> None:
    monkeypatch.setitem(generation._LOOK_EVERY, "cpu", every)
    with ending_at_random(native):
        together = native.answers(NUMBERS, batch_size=batch_size, curves_of=[3, 11])
    assert len({len(answer.ids) for answer in alone}) > 5
    for found, wanted in zip(together, alone, strict=True):
        same(found, wanted)
        assert (found.probs_TK is None) == (found.image_id not in (3, 11))
        if wanted.probs_TK is not None:
            assert found.probs_TK == pytest.approx(wanted.probs_TK, abs=1e-4)


def test_a_row_is_given_on_as_soon_as_its_answer_ends_and_let_go_when_no_image_waits(native) -> None:
    with ending_at_random(native), counted_steps(native) as passes:
        found = native.answers(NUMBERS)
    lengths = [len(answer.ids) + (not answer.truncated) for answer in found]
    steps = len(passes) - len(NUMBERS)  # four rows: a prompt at a time
    assert Counter(passes)[1] >= len(NUMBERS)
    waiting = sum(max(lengths[at : at + 4]) for at in range(0, len(lengths), 4))
    assert sum(lengths) / 4 <= steps + len(NUMBERS) / 4 <= waiting
    assert steps < 0.9 * waiting, "a batch that waits for its longest answer takes more steps"
    with ending_at_random(native), counted_steps(native) as passes:
        native.answers(range(1, 17), batch_size=16)
    steps = passes[4:]  # prompts go in fours
    assert steps == sorted(steps, reverse=True)
    assert steps[0] == 16 > 8 > steps[-1]


def test_random_weights_under_the_grammar_are_well_formed(base) -> None:
    text_ids, num_objects = frozenset(plain_text_ids(base.tokenizer)), 0
    for length in (9, 40):
        for answer in base.answers([1, 2, 3, 4], max_new_tokens=length):
            parsed = parse_generated(answer.ids.tolist(), base.vocab, text_ids=text_ids)
            assert parsed.failures in ((), ("unclosed",) if answer.truncated else ())
            num_objects += len(parsed.objects)
    free = base.answers([1, 2, 3, 4], constrained=False)
    failures = [parse_generated(one.ids.tolist(), base.vocab, text_ids=text_ids).failures for one in free]
    assert any(failures), "negative control: without the grammar random weights write nonsense"
    assert num_objects > 10


def nudged(base, *, token: int, after: int):
    """Make ``token`` certain from step ``after`` on."""
    calls: list[int] = []

    def hook(module, args, logits):
        calls.append(1)
        return logits.index_fill(-1, torch.tensor([token]), 1e3) if len(calls) > after else logits

    return on_logits(base, hook)


@pytest.mark.parametrize("end", ["end", "pad"])
def test_the_end_token_is_cut_and_not_truncation(native, end: str) -> None:
    token = native.vocab.end_id if end == "end" else native.tokenizer.pad_token_id
    with nudged(native, token=token, after=3):
        (answer,) = native.answers([1], constrained=False, max_new_tokens=12)
    assert {len(answer.ids), *(len(getattr(answer, name)) for name in COLUMNS)} == {3}
    assert not answer.truncated
    (full,) = native.answers([1], constrained=False, max_new_tokens=3)
    assert full.ids.tolist() == answer.ids.tolist()
    assert full.truncated
    with nudged(native, token=token, after=0):
        found = native.answers(NUMBERS, constrained=False, max_new_tokens=9)
    assert {len(answer.ids) for answer in found} == {0}
    assert not any(answer.truncated for answer in found)


def test_a_wrapped_model_answers_alike(native) -> None:
    expected = [answer.ids.tolist() for answer in native.answers([1, 2], constrained=False)]
    peft = get_peft_model(native.model, LoraConfig(r=2, target_modules=["q_proj"]))
    causal = get_peft_model(peft.unload(), LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    for wrapped in (peft, causal):  # a fresh LoRA adds zeros, which costs a rounding but no token
        found = native.answers([1, 2], constrained=False, answering=replace(native.answering, model=wrapped))
        assert [answer.ids.tolist() for answer in found] == expected
    causal.unload()


def test_samples_are_read_once_and_as_rows_become_free(native) -> None:
    class Lazy:
        read: list[int] = []  # noqa: RUF012

        def __getitem__(self, index: int):
            self.read.append(index)
            return native.sample(index + 1)

    samples, seen = Lazy(), []
    found = generate_queue(
        native.answering,
        samples,
        [2, 4, 0],
        grammar=None,
        batch_size=2,
        max_new_tokens=2,
        on_images=lambda count: seen.append((count, list(samples.read))),
    )
    assert [answer.image_id for answer in found] == [3, 5, 1]
    assert seen == [(2, [2, 4]), (1, [2, 4, 0])]


def test_any_attention_of_the_model_gives_the_same_and_stays_as_it_was(native) -> None:
    wanted = native.answers([1, 2, 3])
    native.model.set_attn_implementation("eager")
    try:
        for found, one in zip(native.answers([1, 2, 3]), wanted, strict=True):
            same(found, one)
        assert native.model.model.language_model.config._attn_implementation == "eager"
    finally:
        native.model.set_attn_implementation("sdpa")


def test_a_model_that_trains_whole_in_bfloat16_answers_in_it(native) -> None:
    seen: set[torch.dtype] = set()
    inside = native.model.model.language_model.layers[0].mlp.register_forward_hook(
        lambda module, args, output: seen.add(output.dtype)
    )
    plain = native.answers([1, 2], batch_size=2)
    assert seen == {torch.float32}
    seen.clear()
    forward = native.model.forward
    autocast_forward(native.model, device_type="cpu")
    try:
        in_half = native.answers([1, 2], batch_size=2)
    finally:
        native.model.forward = forward
        del native.model._original_forward
        inside.remove()
    assert seen == {torch.bfloat16}
    assert in_half[0].log_probs[0] == pytest.approx(plain[0].log_probs[0], rel=0.05)


def test_offsets_act_after_the_head_was_replaced(native) -> None:
    model = copy.deepcopy(native.model)
    adapter = install_coord_offset_adapter(model, coord_ids=native.vocab.coord_ids)
    with torch.no_grad():
        adapter.embed_offset.normal_(std=0.5, generator=torch.Generator().manual_seed(0))
    moved = replace(native, model=model)
    wanted = moved.answers([1, 2])
    assert [one.ids.tolist() for one in wanted] != [one.ids.tolist() for one in native.answers([1, 2])]
    model.resize_token_embeddings(native.vocab_size)
    model.lm_head = copy.deepcopy(model.lm_head)
    model.lm_head._forward_hooks.clear()
    for found, one in zip(moved.answers([1, 2]), wanted, strict=True):
        same(found, one)


def test_queues_are_of_alike_answers() -> None:
    expected, lengths = [2, 0, 7, 2, 0], [5, 8, 5, 6, 9]
    assert image_queues(lengths, expected=expected, batch_size=3) == [[2, 3, 0, 4, 1]]  # longest answers, then prompts
    assert image_queues(lengths, expected=expected, batch_size=2) == [[2, 3], [0, 4, 1]]
    assert image_queues([], expected=[], batch_size=3) == []
    for num, batch_size, queues in ((300, 34, 5), (5000, 128, 20)):
        cut = image_queues([1] * num, expected=list(range(num)), batch_size=batch_size)
        assert len(cut) == queues
        assert [index for queue in cut for index in queue] == list(reversed(range(num)))
        assert max(map(len, cut)) - min(map(len, cut)) <= 1
