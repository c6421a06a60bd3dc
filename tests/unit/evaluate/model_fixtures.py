"""A tiny Qwen3-VL with random weights, and encoded images to give it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from transformers import Qwen2TokenizerFast, Qwen3VLForConditionalGeneration

from coordexp.coord_tokens.grammar.constrain import plain_text_ids
from coordexp.coord_tokens.vocab import CoordVocab, Structure, expand_vocab
from coordexp.data.batch import EncodedSample
from coordexp.data.dataset import Prompt
from coordexp.data.patches import ImageSpec, to_patches
from coordexp.data.sources.shapes import draw_scene
from coordexp.evaluate.generate.generation import GeneratedSequence
from coordexp.evaluate.generate.rows import GenerationSpec
from coordexp.evaluate.generate.token_statistics import TokenStatistics
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

    def spec(self, *, max_new_tokens: int = 40) -> GenerationSpec:
        return GenerationSpec(
            max_new_tokens=max_new_tokens,
            pad_id=self.tokenizer.pad_token_id,
            image_token_id=self.model.config.image_token_id,
            image_spec=self.image_spec,
            end_id=self.vocab.end_id,
            number_ids=self.vocab.coord_ids,
            open_id=self.vocab.obj_start_id,
        )


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


@pytest.fixture
def sequence() -> Callable[..., GeneratedSequence]:
    """Ids -> a generated sequence whose numbers are their position."""

    def build(ids: list[int], *, truncated: bool = False) -> GeneratedSequence:
        numbers = range(len(ids))
        return GeneratedSequence(
            image_id=1,
            ids=tuple(ids),
            statistics=TokenStatistics(
                log_probs=tuple(-0.01 * at for at in numbers),
                expected=tuple(0.001 * at for at in numbers),
                width=tuple(10.0 + at for at in numbers),
                coord_mass=tuple(0.5 + 0.01 * at for at in numbers),
            ),
            truncated=truncated,
        )

    return build
