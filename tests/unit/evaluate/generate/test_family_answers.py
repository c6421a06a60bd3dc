"""Answers of each family: a batch says what each image says alone, as transformers' own generation does."""

import pytest
import torch

from coordexp.coord_tokens.grammar.constrain import plain_text_ids
from coordexp.coord_tokens.vocab import expand_vocab
from coordexp.data.images.patches import ImageSpec
from coordexp.model.families import FAMILIES
from coordexp.model.loading import load
from coordexp.model.tiny.parts import write_tiny
from tests.support.model_fixtures import Base
from tests.unit.evaluate.generate.test_generation import NUMBERS, raw_logits, same


@pytest.fixture(scope="module", params=sorted(set(FAMILIES) - {"qwen3_vl"}))
def base(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "base"
    write_tiny(FAMILIES[request.param], folder, tied=False)
    loaded = load(folder)
    vocab = expand_vocab(loaded.model, loaded.processor.tokenizer, init="numeric")
    with torch.no_grad():  # answers that vary: every row its own, and text quiet enough for markers and coord tokens
        generator = torch.Generator().manual_seed(7)
        for table in (loaded.model.get_input_embeddings().weight, loaded.model.lm_head.weight):
            table.copy_(torch.randn(table.shape, generator=generator) * 0.5)
        loaded.model.lm_head.weight[plain_text_ids(loaded.processor.tokenizer)] *= 0.3
        loaded.model.lm_head.weight[vocab.end_id] = 0
    return Base(
        model=loaded.model,
        tokenizer=loaded.processor.tokenizer,
        vocab=vocab,
        image_spec=ImageSpec.from_processor(loaded.processor.image_processor),
    )


@pytest.mark.parametrize("constrained", [True, False])
def test_a_batch_answers_as_each_image_alone(base, constrained):
    together = base.answers(NUMBERS[:5], constrained=constrained, max_new_tokens=16)
    alone = [base.answers([number], constrained=constrained, max_new_tokens=16)[0] for number in NUMBERS[:5]]
    assert len({tuple(answer.ids) for answer in together}) > 1
    for one, other in zip(together, alone, strict=True):
        same(one, other)


def test_statistics_are_those_of_a_plain_forward_pass(base):
    (answer,) = base.answers(NUMBERS[:1], max_new_tokens=12)
    logits = raw_logits(base, NUMBERS[0], answer.ids.tolist())
    log_probs = logits.float().log_softmax(dim=-1)[torch.arange(len(answer.ids)), torch.tensor(answer.ids)]
    assert answer.log_probs == pytest.approx(log_probs.numpy(), abs=2e-3)
