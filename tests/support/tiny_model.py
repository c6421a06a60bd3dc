"""A Qwen3-VL with as few layers as one can have: what is proven of a layer needs no fourth one."""

from pathlib import Path

from torch import nn
from transformers import Qwen3VLForConditionalGeneration
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

from coordexp.files import sha256_of_file
from coordexp.model.tiny.parts import build_model

NUM_LAYERS = 2  # as many as there are deepstack features


def build_shallow(tokenizer: Qwen2Tokenizer, *, tie_word_embeddings: bool = True) -> Qwen3VLForConditionalGeneration:
    """Return a random model as ``build_model`` does, with two layers of text and two of vision."""
    model = build_model(tokenizer, tie_word_embeddings=tie_word_embeddings)
    text, vision = model.model.language_model, model.model.visual
    text.layers, vision.blocks = nn.ModuleList(text.layers[:NUM_LAYERS]), nn.ModuleList(vision.blocks[:NUM_LAYERS])
    model.config.text_config.num_hidden_layers = model.config.vision_config.depth = NUM_LAYERS
    return model


def weights_hash(checkpoint: Path) -> list[str]:
    """Return the hash of each weight file of a checkpoint, in name order."""
    return [sha256_of_file(path) for path in sorted(checkpoint.glob("*.safetensors"))]
