"""An expanded tiny checkpoint that answers with objects, and images to evaluate it on."""

from pathlib import Path

from coordexp.config.schema.data import Shapes
from coordexp.data.sources.shapes import write_shapes
from coordexp.model.tiny.parts import save_base
from tests.support.model_fixtures import random_base

NUM_IMAGES = 10


def make_checkpoint(path: Path) -> Path:
    """Save a random base whose answers vary."""
    base = random_base("native", seed=7)
    save_base(path, base.model, base.tokenizer)
    return path


def make_shapes(path: Path) -> Path:
    """Generate a split."""
    return write_shapes(path, Shapes(num_train=1, num_val=NUM_IMAGES))


def arguments(checkpoint: Path, shapes: Path) -> list[str]:
    """Return command-line arguments of a small evaluation."""
    files = ["--model", checkpoint, "--annotations", shapes / "instances_val.json", "--images", shapes / "val"]
    return [*map(str, files), "--batch-size", "2", "--max-new-tokens", "40", "--threads", "1"]
