"""An expanded tiny checkpoint that answers with objects, and images to evaluate it on."""

from pathlib import Path

import torch

from coordexp.coord_tokens.grammar.constrain import plain_text_ids
from coordexp.coord_tokens.vocab import expand_vocab
from coordexp.data.sources.shapes import ShapesSpec, write_shapes
from coordexp.model.tiny.parts import build_model, build_tokenizer, save_base

NUM_IMAGES = 10


def make_checkpoint(path: Path) -> Path:
    """Save a random base whose answers vary; see the unit tests' conftest."""
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, tie_word_embeddings=False)
    expand_vocab(model, tokenizer, structure="native")
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.ndim >= 2):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.12)
        model.get_input_embeddings().weight.mul_(5)
        model.lm_head.weight[plain_text_ids(tokenizer)] *= 0.3
    save_base(path, model, tokenizer)
    return path


def make_shapes(path: Path) -> Path:
    """Generate a split."""
    return write_shapes(path, ShapesSpec(num_train=1, num_val=NUM_IMAGES))


def arguments(checkpoint: Path, shapes: Path) -> list[str]:
    """Return command-line arguments of a small evaluation."""
    files = ["--model", checkpoint, "--annotations", shapes / "instances_val.json", "--images", shapes / "val"]
    return [*map(str, files), "--batch-size", "2", "--max-new-tokens", "40", "--threads", "1"]
