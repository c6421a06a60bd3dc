"""Qwen3-VL as it is published, but narrow: the true vocabulary, true ids, files of the true form.

The vocabulary comes from the vendor's own SDK on PyPI, which carries its ranks; nothing is downloaded.
"""

import copy
import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import GenerationConfig, Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer
from transformers.tokenization_utils_base import AddedToken

from coordexp.model.checkpoint.stored_model import quiet
from coordexp.model.tiny.parts import SPECIAL_TOKENS

NUM_ENTRIES = 151_669
NUM_ROWS = 151_936
WILDCARD_ID = 151_669
COORD_IDS = range(151_670, 152_670)

# As it is published: text, images and videos, a system message, the assistant's turns; tools left out.
CHAT_TEMPLATE = """\
{%- set image_count = namespace(value=0) %}
{%- set video_count = namespace(value=0) %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for content in message.content %}
            {%- if content.type == 'image' or 'image' in content or 'image_url' in content %}
                {%- set image_count.value = image_count.value + 1 %}
                {%- if add_vision_id %}Picture {{ image_count.value }}: {% endif -%}
                <|vision_start|><|image_pad|><|vision_end|>
            {%- elif content.type == 'video' or 'video' in content %}
                {%- set video_count.value = video_count.value + 1 %}
                {%- if add_vision_id %}Video {{ video_count.value }}: {% endif -%}
                <|vision_start|><|video_pad|><|vision_end|>
            {%- elif 'text' in content %}
                {{- content.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# Of the 26 added tokens these twelve are ordinary ones: they survive when special tokens are skipped.
_ORDINARY = SPECIAL_TOKENS[14:]

_IMAGE_PROCESSOR = {
    "size": {"longest_edge": 16_777_216, "shortest_edge": 65_536},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "processor_class": "Qwen3VLProcessor",
    "image_processor_type": "Qwen2VLImageProcessorFast",
}
_VIDEO_PROCESSOR = _IMAGE_PROCESSOR | {"video_processor_type": "Qwen3VLVideoProcessor"}


def ranks_file() -> Path:
    """Return the vendor's ranks; skip the test where the package is not installed."""
    spec = importlib.util.find_spec("dashscope")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder) / "resources" / "qwen.tiktoken"
        if file.is_file():
            return file
    pytest.skip("the true vocabulary needs the test-only package dashscope with resources/qwen.tiktoken")


def build_qwen_tokenizer() -> Qwen2Tokenizer:
    """Return Qwen3-VL's tokenizer: 151,643 ranks and 26 added tokens."""
    file = str(ranks_file())
    vocab, merges = TikTokenConverter(file).extract_vocab_merges_from_model(file)
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=merges)
    tokenizer.add_tokens([AddedToken(token, special=token not in _ORDINARY) for token in SPECIAL_TOKENS])
    tokenizer.eos_token = "<|im_end|>"  # only now: the class gives it the first free id
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def write_qwen_tokenizer(path: Path) -> Path:
    """Write the tokenizer's files in the form in which they are published."""
    tokenizer = build_qwen_tokenizer()
    tokenizer.save_pretrained(path)
    (path / "chat_template.jinja").unlink()
    (path / "chat_template.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    ids = tokenizer.get_vocab()
    settings = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {str(ids[token]): _added(token) for token in SPECIAL_TOKENS},
        "additional_special_tokens": [token for token in SPECIAL_TOKENS[1:] if token not in _ORDINARY],
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 262_144,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    return path


def _added(token: str) -> dict[str, object]:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": token, **flags, "special": token not in _ORDINARY}


def published_config(
    *,
    hidden: int,
    layers: int,
    heads: int,
    intermediate: int,
    vision: dict[str, object],
    tied: bool,
    head_dim: int = 128,
    mrope_section: tuple[int, int, int] = (24, 20, 20),
) -> dict[str, object]:
    """Return ``config.json`` in the form in which the dense models are published."""
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "image_token_id": 151_655,
        "model_type": "qwen3_vl",
        "text_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 151_643,
            "dtype": "bfloat16",
            "eos_token_id": 151_645,
            "head_dim": head_dim,
            "hidden_act": "silu",
            "hidden_size": hidden,
            "initializer_range": 0.02,
            "intermediate_size": intermediate,
            "max_position_embeddings": 262_144,
            "model_type": "qwen3_vl_text",
            "num_attention_heads": heads,
            "num_hidden_layers": layers,
            "num_key_value_heads": min(8, heads),
            "rms_norm_eps": 1e-06,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": list(mrope_section), "rope_type": "default"},
            "rope_theta": 5_000_000,
            "use_cache": True,
            "vocab_size": NUM_ROWS,
        }
        | ({"tie_word_embeddings": True} if tied else {}),
        "tie_word_embeddings": tied,
        "transformers_version": "4.57.0.dev0",
        "video_token_id": 151_656,
        "vision_config": {
            "hidden_act": "gelu_pytorch_tanh",
            "in_channels": 3,
            "initializer_range": 0.02,
            "model_type": "qwen3_vl",
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "out_hidden_size": hidden,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        }
        | vision,
        "vision_end_token_id": 151_653,
        "vision_start_token_id": 151_652,
    }


_LARGE_VISION = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "deepstack_visual_indexes": [5, 11, 17]}
_GIANT_VISION = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "deepstack_visual_indexes": [8, 16, 24]}

PUBLISHED = {
    "2B": published_config(hidden=2048, layers=28, heads=16, intermediate=6144, vision=_LARGE_VISION, tied=True),
    "4B": published_config(hidden=2560, layers=36, heads=32, intermediate=9728, vision=_LARGE_VISION, tied=True),
    "8B": published_config(hidden=4096, layers=36, heads=32, intermediate=12288, vision=_GIANT_VISION, tied=False),
}


def narrow_config(*, tied: bool) -> dict[str, object]:
    """Return the published form with two text layers of 64 and two vision layers of 32."""
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "deepstack_visual_indexes": [0]}
    shape = {"hidden": 64, "layers": 2, "heads": 2, "intermediate": 96, "head_dim": 32}
    return published_config(**shape, mrope_section=(6, 5, 5), vision=vision, tied=tied)


def write_narrow(
    path: Path, tokenizer: Path, *, tied: bool, max_shard_size: str = "12MB", dtype: torch.dtype = torch.bfloat16
) -> Path:
    """Write a narrow checkpoint as the hub would give it: shards and their index, and every small file.

    Args:
        path: new directory.
        tokenizer: directory of the true tokenizer's files.
        tied: whether embedding and head are one table.
        max_shard_size: of a weights file, as ``save_pretrained`` takes it.
        dtype: of the weights.
    """
    config = narrow_config(tied=tied)
    torch.manual_seed(0)
    # A copy, for from_dict changes what it is given.
    model = Qwen3VLForConditionalGeneration(Qwen3VLConfig.from_dict(copy.deepcopy(config))).to(dtype)
    assert model.config.text_config.rope_parameters["rope_theta"] == 5_000_000
    model.generation_config = GenerationConfig(
        bos_token_id=151_643, eos_token_id=[151_645, 151_643], pad_token_id=151_643, do_sample=False
    )
    with quiet():
        model.save_pretrained(path, max_shard_size=max_shard_size)
    (path / "config.json").write_text(json.dumps(config, indent=2))  # as published, not as this transformers writes it
    write_small_files(path, tokenizer)
    return path


def write_small_files(path: Path, tokenizer: Path) -> None:
    """Write tokenizer, chat template and processors into a checkpoint directory."""
    for file in tokenizer.iterdir():
        (path / file.name).hardlink_to(file)
    (path / "preprocessor_config.json").write_text(json.dumps(_IMAGE_PROCESSOR, indent=2))
    (path / "video_preprocessor_config.json").write_text(json.dumps(_VIDEO_PROCESSOR, indent=2))


def all_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of a checkpoint's files."""
    return {name: tensor for file in sorted(path.glob("*.safetensors")) for name, tensor in load_file(file).items()}
