"""What the recorder keeps, against plain formulas and a second, teacher-forced pass."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.expectation import expected_values
from coordexp.coord_tokens.grammar.constrain import ObjectGrammar
from coordexp.data.batch import collate
from coordexp.data.patches import pixel_values
from coordexp.detection.categories import CategoryIndex
from coordexp.evaluate.generate.generation import GeneratedSequence, generate_sequences
from coordexp.evaluate.generate.parse import SCORES, SequenceParser
from coordexp.evaluate.generate.token_statistics import RawLogitsRecorder, mean_and_width
from coordexp.evaluate.objects import ImageRecord

COORDS = range(5, 1005)


def generate(base, numbers: Sequence[int], *, grammar: bool = True, **options) -> list[GeneratedSequence]:
    """Generate in one batch."""
    tables = ObjectGrammar.for_model(base.vocab, base.tokenizer, vocab_size=base.vocab_size) if grammar else None
    samples = [base.sample(number) for number in numbers]
    return generate_sequences(
        base.model,
        samples,
        spec=base.spec(max_new_tokens=40),
        grammar=tables,
        batches=[list(range(len(samples)))],
        **options,
    )


def record(base, seq: GeneratedSequence, *, score: str = "coord_desc") -> ImageRecord:
    return SequenceParser(base.vocab, base.tokenizer, categories=CategoryIndex({1: "cat"}), score=score).record(seq)


def test_mean_and_width_by_hand() -> None:
    # Bins 200 and 400, half each: mean 300, distance 100. All on bin 7: width 0. Flat: sqrt((K^2 - 1) / 12).
    p = torch.zeros(3, NUM_BINS)
    p[0, [200, 400]] = 0.5
    p[1, 7] = 1.0
    p[2] = 1 / NUM_BINS
    mean, width = mean_and_width(p)
    assert mean.tolist() == pytest.approx([0.3, 0.007, 0.4995], abs=1e-6)
    assert width.tolist() == pytest.approx([100.0, 0.0, ((NUM_BINS**2 - 1) / 12) ** 0.5], rel=1e-6)


def test_the_mean_is_that_of_training_to_the_bit() -> None:
    logits = torch.randn(50, NUM_BINS, generator=torch.Generator().manual_seed(0)) * 4
    assert torch.equal(mean_and_width(logits.softmax(dim=1))[0], expected_values(logits))


def test_a_narrow_distribution_far_out_keeps_its_width() -> None:
    # E[k^2] - E[k]^2 in float32 gives 0.25 or nothing here.
    p = torch.zeros(1, NUM_BINS)
    p[0, 998], p[0, 999] = 0.99, 0.01
    assert mean_and_width(p)[1].item() == pytest.approx((0.99 * 0.01) ** 0.5, rel=1e-3)


def test_one_step_of_logits_is_held_and_nothing_touched() -> None:
    recorder = RawLogitsRecorder(COORDS, curve_rows=[1])
    generator = torch.Generator().manual_seed(0)
    ids = torch.tensor([[1, 1], [1, 1]])
    steps, tokens = [], torch.tensor([[7, 3, 1004], [0, 5, 2]])
    for at in range(3):
        logits = torch.randn(2, 1010, generator=generator)
        assert recorder(ids, logits) is logits
        steps.append(logits.clone())
        ids = torch.cat([ids, tokens[:, at : at + 1]], dim=1)
        held = [v for value in vars(recorder).values() for v in (value if isinstance(value, list | tuple) else [value])]
        sizes = [v.numel() for v in held if isinstance(v, torch.Tensor)]
        assert sum(size for size in sizes if size >= NUM_BINS) == 2 * 1010 + (at + 1) * NUM_BINS
    found = recorder.finish(ids, num_steps=3)
    for at, logits in enumerate(steps):
        p = logits[:, COORDS.start : COORDS.stop].double().softmax(-1)
        bins = torch.arange(NUM_BINS).double()
        mean = p @ bins
        emitted = logits.log_softmax(-1).gather(1, tokens[:, at : at + 1]).squeeze(1)
        rows = [found.of_sequence(row, 3) for row in range(2)]
        assert [row.log_probs[at] for row in rows] == pytest.approx(emitted.tolist(), abs=1e-5)
        assert [row.expected[at] for row in rows] == pytest.approx((mean / NUM_BINS).tolist(), abs=1e-6)
        width = (p @ bins.square() - mean.square()).sqrt()
        assert [row.width[at] for row in rows] == pytest.approx(width.tolist(), rel=1e-4)
        mass = logits.softmax(-1)[:, 5:1005].sum(-1)
        assert [row.coord_mass[at] for row in rows] == pytest.approx(mass.tolist(), abs=1e-5)
        assert found.probs_RTK[0, at] == pytest.approx(p[1].float(), abs=1e-7)
    assert found.probs_RTK.shape == (1, 3, NUM_BINS)


def margins_of(base, seq: GeneratedSequence, logits_TV: torch.Tensor) -> list[float]:
    """Another object against the end, before the first token and behind each closed object that is not the last."""
    boundaries = [0] + [at + 1 for at, token in enumerate(seq.ids) if token == base.vocab.obj_end_id]
    pairs = logits_TV.log_softmax(-1)[:, [base.vocab.obj_start_id, base.vocab.end_id]]
    odds = (pairs[:, 0] - pairs[:, 1]).tolist()
    # The end itself is not among these rows; there the answer chose it, unless it was cut before.
    at_end = [] if boundaries[-1] < len(seq.ids) or seq.truncated else [seq.stop_margins[-1]]
    return [odds[at] for at in boundaries if at < len(seq.ids)] + at_end


@pytest.mark.parametrize("constrained", [True, False])
def test_a_teacher_forced_pass_gives_the_same(base, constrained: bool) -> None:
    """Generation: left padding, four rows of mixed sizes, a cache. The second pass: one forward, right padding."""
    numbers = [1, 2, 3, 4]
    assert len({base.sample(number).length for number in numbers}) > 1, "no padding otherwise"
    sequences = generate(base, numbers, grammar=constrained, curves_of=[2])
    answered = [replace(base.sample(n), target_ids=list(s.ids)) for n, s in zip(numbers, sequences, strict=True)]
    for pad_left in (False, True):
        pad = base.tokenizer.pad_token_id
        batch = collate(answered, pad_id=pad, image_token_id=base.model.config.image_token_id, pad_left=pad_left)
        with torch.no_grad():
            logits_BLV = base.model(
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                mm_token_type_ids=batch.mm_token_type_ids,
                pixel_values=pixel_values(batch.patches, base.image_spec),
                image_grid_thw=batch.image_grid_thw,
                use_cache=False,
            ).logits
        num_coords = 0
        for row, seq in enumerate(sequences):
            places = (batch.labels[row] >= 0).nonzero().squeeze(1)
            logits_TV = logits_BLV[row, places - 1]
            log_probs = logits_TV.log_softmax(-1).gather(1, batch.labels[row, places].unsqueeze(1)).squeeze(1)
            p_TK = logits_TV[:, base.vocab.coord_ids.start : base.vocab.coord_ids.stop].softmax(-1)
            mean, width = mean_and_width(p_TK)
            assert torch.tensor(seq.statistics.log_probs) == pytest.approx(log_probs, abs=2e-4)
            assert torch.tensor(seq.statistics.expected) == pytest.approx(mean, abs=1e-4)
            assert torch.tensor(seq.statistics.width) == pytest.approx(width, rel=1e-3, abs=1e-2)
            num_coords += sum(token in base.vocab.coord_ids for token in seq.ids)
            assert (seq.coord_probs is None) == (seq.image_id != 2)
            assert seq.stop_margins == pytest.approx(margins_of(base, seq, logits_TV), abs=2e-4)
            if seq.coord_probs is not None:
                assert np.abs(seq.coord_probs - p_TK.numpy()).max() < 1e-4
        assert num_coords > 8


class Emit(LogitsProcessor):
    """Forces given tokens: what a model emits may change with a penalty, what it is worth must not."""

    def __init__(self, prompt: int, ids_BT: torch.Tensor) -> None:
        self.prompt = prompt
        self.ids_BT = ids_BT

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, -torch.inf)
        return forced.scatter(1, self.ids_BT[:, input_ids.shape[1] - self.prompt].unsqueeze(1), 0.0)


BENDERS = {
    "temperature": lambda: [TemperatureLogitsWarper(3.0)],
    "repetition penalty": lambda: [RepetitionPenaltyLogitsProcessor(5.0)],
    "both": lambda: [RepetitionPenaltyLogitsProcessor(5.0), TemperatureLogitsWarper(0.2)],
}


def forced_scores(base, seq: GeneratedSequence, *, grammar: bool, benders: list) -> list[dict[str, float]]:
    length = len(base.sample(seq.image_id).prompt_ids)
    ids = torch.tensor([[*seq.ids, *[base.vocab.end_id] * 40]])
    again = generate(base, [seq.image_id], grammar=grammar, processors=[*benders, Emit(length, ids)])[0]
    assert again.ids == seq.ids
    by_name = {name: record(base, again, score=name).objects for name in SCORES}
    return [
        dict(zip(by_name, (item.score for item in items), strict=True)) for items in zip(*by_name.values(), strict=True)
    ]


@pytest.mark.parametrize("bender", BENDERS)
@pytest.mark.parametrize("grammar", [True, False])
def test_scores_come_from_raw_logits(native, grammar: bool, bender: str) -> None:
    (seq,) = generate(native, [1])
    plain = forced_scores(native, seq, grammar=False, benders=[])
    assert len(plain) > 1
    assert len({score["coord_desc"] for score in plain}) == len(plain)
    bent = forced_scores(native, seq, grammar=grammar, benders=BENDERS[bender]())
    assert bent == plain


def test_a_recorder_behind_the_mask_would_be_bent(native, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the same comparison fails when the recorder sees processed scores."""
    (seq,) = generate(native, [1])
    plain = forced_scores(native, seq, grammar=False, benders=[])

    class Late(list):
        def __init__(self, processors) -> None:
            recorder, *others = processors
            super().__init__([*others[:-1], recorder, *others[-1:]])

        def __call__(self, input_ids, scores, **kwargs):
            for processor in self:
                scores = processor(input_ids, scores)
            return scores

    monkeypatch.setattr("coordexp.evaluate.generate.generation.LogitsProcessorList", Late)
    bent = forced_scores(native, seq, grammar=False, benders=[TemperatureLogitsWarper(3.0)])
    assert [score["coord"] for score in bent] != [score["coord"] for score in plain]


def test_without_coord_tokens_only_log_probs_are_kept(native) -> None:
    spec = replace(native.spec(), number_ids=range(0))
    samples = [native.sample(1), native.sample(2)]
    plain, with_coords = (
        generate_sequences(native.model, samples, spec=each, grammar=None, batches=[[0, 1]], curves_of=[1])
        for each in (spec, native.spec())
    )
    for seq, other in zip(plain, with_coords, strict=True):
        assert seq.ids == other.ids
        assert seq.statistics.log_probs == other.statistics.log_probs
        assert {*seq.statistics.coord_mass} == {0.0}
        assert seq.statistics.expected == seq.statistics.width == ()
        assert seq.coord_probs is None
    assert with_coords[0].coord_probs is not None
