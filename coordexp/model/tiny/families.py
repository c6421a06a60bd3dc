"""A random model of some hundred thousand parameters of each family, for tests and trials: no download, no training."""

from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from coordexp.model.checkpoint.directory import TINY_BASE
from coordexp.model.families import Family
from coordexp.model.tiny.parts import MODEL_VOCABULARY, save_base


def tiny_config(family: Family, tokenizer: PreTrainedTokenizerBase, *, tied: bool = True) -> PreTrainedConfig:
    """Return a small configuration of a family, with the ids of a tokenizer: text 4 layers of 64, vision 2 of 32."""
    ids = tokenizer.get_vocab()
    text = {
        "vocab_size": MODEL_VOCABULARY,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
        "tie_word_embeddings": tied,
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": 8,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 64,
    }
    return AutoConfig.for_model(
        family.model_type,
        text_config={**text, **family.tiny_text},
        vision_config={**vision, **family.tiny_vision},
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=tied,
    )


def write_tiny(family: Family, output: Path, *, tied: bool = True) -> None:
    """Write a random checkpoint of a family with the embedded base's tokenizer, as the vendor's files look.

    Weights are spread widely enough that answers depend on the picture and on every token before them.
    """
    tokenizer = AutoTokenizer.from_pretrained(TINY_BASE, local_files_only=True, trust_remote_code=False)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(tiny_config(family, tokenizer, tied=tied), dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and "conv1d" not in name:
            torch.nn.init.normal_(parameter, std=0.9 / parameter.shape[-1] ** 0.5)
    model.tie_weights()
    save_base(output, model, tokenizer)
