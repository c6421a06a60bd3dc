"""The embedded base: its size, how it loads, that it sees; and the recipe that makes it."""

import torch

from coordexp.data.batch import collate
from coordexp.data.images.patches import ImageSpec
from coordexp.model.checkpoint.directory import TINY_BASE
from coordexp.model.loading import load
from coordexp.model.tiny.parts import build_tokenizer
from coordexp.model.tiny.pretrain import Phase, PretrainSpec, example_scenes, pretrain, supervised_logits

SHORT = PretrainSpec(
    phases=(
        Phase(steps=2, learning_rate=1e-3, horizon=10, warmup_steps=1),
        Phase(steps=2, learning_rate=1e-3, horizon=2, warmup_steps=1),
    ),
    batch_size=2,
    num_scenes=32,
)


def _digit_accuracy(model, tokenizer, image_processor, *, num_scenes=24):
    """Share of right first digits under teacher forcing, on scenes the base was not trained on."""
    spec = ImageSpec.from_processor(image_processor)
    samples = example_scenes(tokenizer, spec, num_scenes=num_scenes, stream=78)
    batch = collate(samples, pad_id=tokenizer.pad_token_id, image_token_id=model.config.image_token_id)
    with torch.inference_mode():
        logits, targets = supervised_logits(model, batch, spec)
    digits = torch.tensor([tokenizer.convert_tokens_to_ids(str(digit)) for digit in range(10)])
    right = (logits.argmax(dim=1) == targets)[torch.isin(targets, digits)].view(-1, 3)
    return right[:, 0].float().mean().item()


def test_the_shipped_base_is_small_and_sees():
    assert sum(path.stat().st_size for path in TINY_BASE.iterdir()) < 6_000_000
    loaded = load("embedded", dtype="float32")
    assert loaded.vocab is None
    assert loaded.model.config.model_type == "qwen3_vl"
    found = _digit_accuracy(loaded.model, loaded.processor.tokenizer, loaded.processor.image_processor)
    assert found > 0.75


def test_the_shipped_tokenizer_is_the_recipes():
    loaded = load("embedded", dtype="float32")
    text = "<|object_ref_start|>red circle<|box_start|>120 340<|box_end|> fire hydrant ü<|im_end|>"
    assert loaded.processor.tokenizer.encode(text) == build_tokenizer().encode(text)
    assert loaded.processor.tokenizer.decode(build_tokenizer().encode(text)) == text


def test_the_recipe_is_reproducible():
    first, again = pretrain(SHORT), pretrain(SHORT)
    for (name, a), b in zip(first.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b), name
