"""What is kept of each token, against plain formulas and a second, teacher-forced pass."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.expectation import expected_values
from coordexp.coord_tokens.grammar.constrain import ObjectGrammar
from coordexp.data.batch import collate
from coordexp.data.patches import pixel_values
from coordexp.detection.categories import CategoryIndex
from coordexp.evaluate.generate.generation import GeneratedSequence, generate_sequences
from coordexp.evaluate.generate.parse import SequenceParser
from coordexp.evaluate.generate.token_statistics import mean_and_width, read_raw_logits
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
        queues=[list(range(len(samples)))],
        batch_size=len(samples),
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


def test_statistics_of_a_step_are_those_of_its_raw_logits() -> None:
    logits = torch.randn(4, 1010, generator=torch.Generator().manual_seed(0)) * 3
    kept = logits.clone()
    others, probs = read_raw_logits(logits, logits.logsumexp(dim=1), COORDS)
    p = logits[:, COORDS.start : COORDS.stop].double().softmax(-1)
    bins = torch.arange(NUM_BINS).double()
    mean = p @ bins
    mass, expected, width = others
    assert mass == pytest.approx(logits.softmax(-1)[:, 5:1005].sum(-1), abs=1e-5)
    assert expected == pytest.approx((mean / NUM_BINS).float(), abs=1e-6)
    assert width == pytest.approx((p @ bins.square() - mean.square()).sqrt().float(), rel=1e-4)
    assert probs == pytest.approx(p.float(), abs=1e-7)
    assert torch.equal(logits, kept)


@pytest.mark.parametrize("constrained", [True, False])
def test_a_teacher_forced_pass_gives_the_same(base, constrained: bool) -> None:
    """Generation: four rows of mixed sizes, a cache. The second pass: one forward."""
    numbers = [1, 2, 3, 4]
    assert len({base.sample(number).length for number in numbers}) > 1, "no padding otherwise"
    sequences = generate(base, numbers, grammar=constrained, curves_of=[2])
    answered = [replace(base.sample(n), target_ids=list(s.ids)) for n, s in zip(numbers, sequences, strict=True)]
    pad = base.tokenizer.pad_token_id
    batch = collate(answered, pad_id=pad, image_token_id=base.model.config.image_token_id)
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
        if seq.coord_probs is not None:
            assert np.abs(seq.coord_probs - p_TK.numpy()).max() < 1e-4
    assert num_coords > 8


def test_without_coord_tokens_only_log_probs_are_kept(native) -> None:
    spec = replace(native.spec(), number_ids=range(0))
    samples = [native.sample(1), native.sample(2)]
    plain, with_coords = (
        generate_sequences(native.model, samples, spec=each, grammar=None, queues=[[0, 1]], batch_size=2, curves_of=[1])
        for each in (spec, native.spec())
    )
    for seq, other in zip(plain, with_coords, strict=True):
        assert seq.ids == other.ids
        assert seq.statistics.log_probs == other.statistics.log_probs
        assert {*seq.statistics.coord_mass} == {0.0}
        assert seq.statistics.expected == seq.statistics.width == ()
        assert seq.coord_probs is None
    assert with_coords[0].coord_probs is not None
