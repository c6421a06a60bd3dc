"""The parts of the embedded base, a small Qwen3-VL; and a random model of each family that is as small."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2VLImageProcessorPil,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

from coordexp.data.prompt import DEFAULT_PROMPT
from coordexp.data.shapes import CATEGORIES
from coordexp.files import replace_directory
from coordexp.model.checkpoint.directory import TINY_BASE
from coordexp.model.families import Family

EMBEDDED_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' -}}"
    "{%- if message.content is string -%}{{- message.content -}}"
    "{%- else -%}{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- else -%}{{- part.text -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
# The 26 added tokens of Qwen3-VL, in its order.
SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
    "<think>", "</think>",
)  # fmt: skip

_WORDS = (
    "person bicycle car motorcycle airplane bus train truck boat traffic light fire hydrant stop sign parking meter "
    "bench bird cat dog horse sheep cow elephant bear zebra giraffe backpack umbrella handbag tie suitcase frisbee "
    "sports ball baseball bat glove skateboard tennis racket bottle wine glass cup fork knife spoon bowl banana "
    "apple sandwich orange broccoli carrot pizza donut cake chair couch potted plant bed dining table toilet laptop "
    "mouse remote keyboard cell phone oven sink book clock vase scissors teddy hair drier toothbrush"
)
_BPE_VOCABULARY = 614
_MODEL_VOCABULARY = 704  # rows; a few more than the tokenizer has entries, as in released models


def build_tokenizer() -> Qwen2Tokenizer:
    """Train a small byte-level BPE with Qwen's splitting rule, special tokens and chat template."""
    trainer = trainers.BpeTrainer(
        vocab_size=_BPE_VOCABULARY, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    frequent = [*CATEGORIES, DEFAULT_PROMPT, "user assistant system"] * 20  # so that these become few tokens
    words = _WORDS.split()
    bpe.train_from_iterator([*frequent, *words, *(f" {word}" for word in words)], trainer)
    vocab = bpe.get_vocab(with_added_tokens=False)
    merges = [(first, second) for first, second in json.loads(bpe.to_str())["model"]["merges"]]
    tokenizer = Qwen2Tokenizer(
        vocab=vocab,
        merges=merges,  # pyright: ignore[reportArgumentType]  # pairs, as transformers itself passes them
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    tokenizer.add_tokens(list(SPECIAL_TOKENS), special_tokens=True)
    tokenizer.chat_template = EMBEDDED_TEMPLATE
    return tokenizer


def build_image_processor() -> Qwen2VLImageProcessorPil:
    """Return an image processor with patches of 8 x 8 pixels and images of at most 96 x 96."""
    return Qwen2VLImageProcessorPil(
        patch_size=8,
        merge_size=2,
        temporal_patch_size=2,
        size={"shortest_edge": 32 * 32, "longest_edge": 96 * 96},
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )


def build_model(
    tokenizer: Qwen2Tokenizer, *, seed: int = 0, tie_word_embeddings: bool = True
) -> Qwen3VLForConditionalGeneration:
    """Return a random Qwen3-VL with 4 text layers of width 128 and 3 vision layers of width 96."""
    ids = tokenizer.get_vocab()
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": _MODEL_VOCABULARY,
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": [6, 5, 5],
                "mrope_interleaved": True,
            },
            "pad_token_id": tokenizer.pad_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "tie_word_embeddings": tie_word_embeddings,
        },
        vision_config={
            "depth": 3,
            "hidden_size": 96,
            "intermediate_size": 288,
            "num_heads": 4,
            "patch_size": 8,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": 128,
            "num_position_embeddings": 256,
            "deepstack_visual_indexes": [0, 1],
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=tie_word_embeddings,
    )
    torch.manual_seed(seed)
    return Qwen3VLForConditionalGeneration(config)


def save_base(path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write checkpoint, tokenizer, chat template and image processor as one directory."""
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=False
    )
    with replace_directory(path) as building:
        model.save_pretrained(building)
        tokenizer.save_pretrained(building)
        build_image_processor().save_pretrained(building)


def tiny_config(family: Family, tokenizer: PreTrainedTokenizerBase, *, tied: bool) -> PreTrainedConfig:
    """Return a small configuration of a family: 4 text layers of width 64 and 2 vision layers of width 32."""
    ids = tokenizer.get_vocab()
    text = {
        "vocab_size": _MODEL_VOCABULARY,
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
    """Write a random checkpoint of a family, with the embedded base's tokenizer and files like the vendor's.

    Weights are spread so widely that an answer depends on the picture and on every token before it.
    """
    tokenizer = AutoTokenizer.from_pretrained(TINY_BASE, local_files_only=True, trust_remote_code=False)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(tiny_config(family, tokenizer, tied=tied), dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and "conv1d" not in name:
            torch.nn.init.normal_(parameter, std=0.9 / parameter.shape[-1] ** 0.5)
    model.tie_weights()
    save_base(output, model, tokenizer)
