"""A tiny Qwen3-VL with random weights, and encoded images to give it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from transformers import Qwen2TokenizerFast, Qwen3VLForConditionalGeneration

from coordexp.coord_tokens.grammar.constrain import plain_text_ids
from coordexp.coord_tokens.vocab import CoordVocab, Structure, expand_vocab
from coordexp.data.batch import EncodedSample
from coordexp.data.images.patches import ImageSpec, to_patches
from coordexp.data.prompt import Prompt
from coordexp.data.shapes import draw_scene
from coordexp.evaluate.generate.answer import Answer
from coordexp.evaluate.generate.formats import SequenceFormat
from coordexp.evaluate.generate.generation import generate_queue
from coordexp.evaluate.generate.model import AnsweringModel
from coordexp.metrics import TOP_TOKENS
from coordexp.model.tiny.parts import build_image_processor, build_model, build_tokenizer


@dataclass(frozen=True)
class Base:
    """An expanded random base and what goes with it."""

    model: Qwen3VLForConditionalGeneration
    tokenizer: Qwen2TokenizerFast
    vocab: CoordVocab
    image_spec: ImageSpec

    @property
    def vocab_size(self) -> int:
        return self.model.config.get_text_config().vocab_size

    def sample(self, number: int) -> EncodedSample:
        picture, _ = draw_scene(np.random.default_rng([5, number]))
        patches, grid = to_patches(picture, self.image_spec)
        tokens = self.image_spec.num_tokens(width=picture.width, height=picture.height)
        return EncodedSample(
            prompt_ids=Prompt.build(self.tokenizer).ids(tokens),
            target_ids=[],
            patches=patches,
            grid=grid,
            boxes_norm_xyxy=np.zeros((0, 4), np.float32),
            coord_index=np.zeros((0, 4), np.int64),
            image_id=number,
        )

    @property
    def answering(self) -> AnsweringModel:
        answers = SequenceFormat(self.vocab, self.tokenizer)
        return AnsweringModel(self.model, self.tokenizer, self.image_spec, answers, encode=lambda samples: samples)

    def answers(
        self,
        numbers: Sequence[int],
        *,
        constrained: bool = True,
        batch_size: int = 4,
        max_new_tokens: int = 40,
        answering: AnsweringModel | None = None,
        **options,
    ) -> list[Answer]:
        """Answer the images in one queue; answers in the order of their numbers, which ascend."""
        answering = answering or self.answering
        found = generate_queue(
            answering,
            [self.sample(number) for number in numbers],
            range(len(numbers)),
            grammar=answering.grammar if constrained else None,
            batch_size=batch_size,
            max_new_tokens=max_new_tokens,
            **options,
        )
        return sorted(found, key=lambda answer: answer.image_id)


def random_base(structure: Structure, *, seed: int) -> Base:
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, tie_word_embeddings=False)
    vocab = expand_vocab(model, tokenizer, structure=structure)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        # Answers that vary: every row its own, layers loud enough for the image to matter, and text
        # quiet enough for markers and coord tokens to win now and then. The seeds give
        # answers that end and some that are cut short.
        for parameter in (p for p in model.parameters() if p.ndim >= 2):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.12)
        model.get_input_embeddings().weight.mul_(5)
        model.lm_head.weight[plain_text_ids(tokenizer)] *= 0.3
    return Base(model.eval(), tokenizer, vocab, ImageSpec.from_processor(build_image_processor()))


@pytest.fixture(scope="session")
def native() -> Base:
    return random_base("native", seed=7)


@pytest.fixture(scope="session")
def spec() -> Base:
    return random_base("spec", seed=4)


@pytest.fixture(params=["native", "spec"])
def base(request: pytest.FixtureRequest) -> Base:
    return request.getfixturevalue(request.param)


def answer_of(ids: Sequence[int], *, image_id: int = 1, **options) -> Answer:
    """An answer of these ids whose numbers are their position."""
    at = np.arange(len(ids))
    served = np.stack([0.001 * at] * len(TOP_TOKENS))
    columns = (-0.01 * at, 0.5 + 0.01 * at, 0.001 * at, 10.0 + at, served)
    return Answer(image_id, np.array(ids, np.int64), *columns, **options)
