from collections.abc import Sequence

import pytest
import torch
from peft import LoraConfig, get_peft_model

from coordexp.coord_tokens.grammar.constrain import ObjectGrammar, plain_text_ids
from coordexp.coord_tokens.grammar.parse import parse_generated
from coordexp.data.batch import collate
from coordexp.data.patches import pixel_values
from coordexp.errors import TrainingError
from coordexp.evaluate.generate.generation import (
    GeneratedSequence,
    evaluation_mode,
    generate_sequences,
    image_queues,
)


def generate(
    base, numbers: Sequence[int], *, constrained: bool, model=None, batch_size: int = 4, **options
) -> list[GeneratedSequence]:
    grammar = ObjectGrammar.for_model(base.vocab, base.tokenizer, vocab_size=base.vocab_size) if constrained else None
    limits = {"max_new_tokens": options.pop("max_new_tokens")} if "max_new_tokens" in options else {}
    samples = [base.sample(number) for number in numbers]
    sequences = generate_sequences(
        base.model if model is None else model,
        samples,
        spec=base.spec(**limits),
        grammar=grammar,
        queues=[range(len(samples))],
        batch_size=batch_size,
        **options,
    )
    return sorted(sequences, key=lambda seq: seq.image_id)


def raw_logits(base, number: int, ids: Sequence[int]) -> torch.Tensor:
    """Teacher-forced logits ``[T, V]`` that predict ``ids``, from one plain forward pass."""
    sample = base.sample(number)
    prompt = len(sample.prompt_ids)
    batch = collate([sample], pad_id=0, image_token_id=base.model.config.image_token_id)
    ids_1L = torch.tensor([[*sample.prompt_ids, *ids]])
    with torch.no_grad():
        logits = base.model(
            input_ids=ids_1L,
            attention_mask=torch.ones_like(ids_1L),
            mm_token_type_ids=(ids_1L == base.model.config.image_token_id).long(),
            pixel_values=pixel_values(batch.patches, base.image_spec),
            image_grid_thw=batch.image_grid_thw,
        ).logits
    return logits[0, prompt - 1 : -1]


@pytest.mark.parametrize("constrained", [True, False])
def test_recorded_numbers_are_those_of_a_plain_forward_pass(base, constrained: bool) -> None:
    for seq in generate(base, [1, 2, 3], constrained=constrained, max_new_tokens=24):
        logits = raw_logits(base, seq.image_id, seq.ids)
        log_probs = logits.log_softmax(-1)
        coords = logits[:, base.vocab.coord_ids.start : base.vocab.coord_ids.stop]
        emitted = log_probs.gather(1, torch.tensor(seq.ids).unsqueeze(1)).squeeze(1)
        assert torch.tensor(seq.statistics.log_probs) == pytest.approx(emitted, abs=1e-4)
        assert torch.tensor(seq.statistics.expected) == pytest.approx(
            coords.softmax(-1) @ (torch.arange(1000) / 1000), abs=1e-4
        )
        mass = log_probs[:, base.vocab.coord_ids.start : base.vocab.coord_ids.stop].exp().sum(-1)
        assert torch.tensor(seq.statistics.coord_mass) == pytest.approx(mass, abs=1e-4)
        if not constrained:
            assert list(seq.ids) == logits.argmax(-1).tolist()
        else:
            # The mask moved the choice somewhere, or this test would not see a score bent by it.
            assert list(seq.ids) != logits.argmax(-1).tolist()


def test_mixed_sizes_in_one_batch_equal_one_by_one(base) -> None:
    numbers = [1, 2, 3, 4, 5, 6]
    assert len({base.sample(number).grid for number in numbers}) > 1
    together = generate(base, numbers, constrained=True, batch_size=6)
    alone = [generate(base, [number], constrained=True)[0] for number in numbers]
    assert [seq.image_id for seq in together] == numbers
    assert len({seq.ids for seq in alone}) > 3, "the images must matter"
    for one, many in zip(alone, together, strict=True):
        assert many.ids == one.ids
        assert many.truncated == one.truncated
        assert torch.tensor(many.statistics.log_probs) == pytest.approx(
            torch.tensor(one.statistics.log_probs), abs=1e-4
        )


def test_random_weights_under_the_grammar_are_well_formed(base) -> None:
    text_ids = frozenset(plain_text_ids(base.tokenizer))
    num_objects = 0
    for length in (9, 40, 63):
        for seq in generate(base, [1, 2, 3, 4], constrained=True, max_new_tokens=length):
            parsed = parse_generated(seq.ids, base.vocab, text_ids=text_ids)
            assert set(parsed.failures) <= ({"unclosed"} if seq.truncated else set())
            assert len(parsed.failures) <= 1
            num_objects += len(parsed.objects)
    free = generate(base, [1, 2, 3, 4], constrained=False)
    failures = [parse_generated(s.ids, base.vocab, text_ids=text_ids).failures for s in free]
    assert any(failures), "negative control: without the grammar random weights write nonsense"
    assert all(len(seq.ids) <= 40 for seq in free)
    assert num_objects > 20


def nudged(base, *, token: int, after: int) -> torch.utils.hooks.RemovableHandle:
    """Make ``token`` certain from step ``after`` on."""
    calls = {"n": 0}

    def hook(module, args, logits):
        calls["n"] += 1
        if calls["n"] > after:
            logits = logits.clone()
            logits[..., token] = 50.0
        return logits

    return base.model.lm_head.register_forward_hook(hook)


@pytest.mark.parametrize("end", ["end", "pad"])
def test_the_end_token_is_cut_and_not_truncation(native, end: str) -> None:
    token = native.vocab.end_id if end == "end" else native.tokenizer.pad_token_id
    handle = nudged(native, token=token, after=3)
    try:
        (seq,) = generate(native, [1], constrained=False, max_new_tokens=12)
    finally:
        handle.remove()
    assert {len(seq.ids), *(len(values) for values in vars(seq.statistics).values())} == {3}
    assert not seq.truncated
    (full,) = generate(native, [1], constrained=False, max_new_tokens=3)
    assert full.ids == seq.ids
    assert full.truncated


def test_the_length_limit_cuts_inside_an_object(native) -> None:
    handle = nudged(native, token=native.vocab.obj_start_id, after=0)
    try:
        (seq,) = generate(native, [1], constrained=True, max_new_tokens=4)
    finally:
        handle.remove()
    assert seq.truncated
    assert seq.ids[0] == native.vocab.obj_start_id
    parsed = parse_generated(seq.ids, native.vocab)
    assert parsed.failures == ("unclosed",)


def test_a_wrapped_model_answers_alike(native) -> None:
    expected = generate(native, [1, 2], constrained=False)
    peft = get_peft_model(native.model, LoraConfig(r=2, target_modules=["q_proj"]))
    causal = get_peft_model(peft.unload(), LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    for wrapped in (peft, causal):
        # A fresh LoRA adds zeros, which costs a rounding but no token.
        found = generate(native, [1, 2], constrained=False, model=wrapped)
        assert [seq.ids for seq in found] == [seq.ids for seq in expected]
    causal.unload()


def test_a_diverged_model_is_refused(native) -> None:
    handle = native.model.lm_head.register_forward_hook(lambda module, args, logits: logits * float("nan"))
    try:
        with pytest.raises(TrainingError, match="image 4: the model's logits are not finite"):
            generate(native, [4], constrained=True)
    finally:
        handle.remove()


def test_samples_are_read_once_and_queue_by_queue(native) -> None:
    class Lazy:
        def __init__(self) -> None:
            self.read: list[int] = []

        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int):
            self.read.append(index)
            return native.sample(index + 1)

    samples, seen = Lazy(), []
    sequences = generate_sequences(
        native.model,
        samples,
        spec=native.spec(max_new_tokens=2),
        grammar=None,
        queues=[[2, 4], [0]],
        batch_size=2,
        on_images=lambda count: seen.append((count, list(samples.read))),
    )
    assert [seq.image_id for seq in sequences] == [3, 5, 1]
    assert seen == [(2, [2, 4]), (1, [2, 4, 0])]


def test_queues_are_of_alike_answers() -> None:
    expected, lengths = [2, 0, 7, 2, 0], [5, 8, 5, 6, 9]
    assert image_queues(lengths, expected=expected, batch_size=3) == [[2, 3, 0, 4, 1]]  # longest answers, then prompts
    assert image_queues(lengths, expected=expected, batch_size=2) == [[2, 3], [0, 4, 1]]
    assert image_queues([], expected=[], batch_size=3) == []
    for num, batch_size, queues in ((300, 34, 5), (500, 32, 8), (5000, 128, 20), (40, 16, 2)):
        cut = image_queues([1] * num, expected=list(range(num)), batch_size=batch_size)
        assert len(cut) == queues
        assert [index for queue in cut for index in queue] == list(reversed(range(num)))
        assert max(map(len, cut)) - min(map(len, cut)) <= 1


def test_evaluation_mode_restores_each_module(native) -> None:
    model = native.model
    model.train()
    model.model.visual.eval()
    try:
        with evaluation_mode(model):
            assert not any(module.training for module in model.modules())
        assert model.lm_head.training
        assert not model.model.visual.training
    finally:
        model.eval()
