"""The other families as they are published: configurations, vocabularies and small files; and the same, but narrow.

Sizes of 9B and 35B-A3B are transformers' own defaults; the others were written from memory and guard against change.
Of Qwen3.5's vocabulary the number of entries and the ids are true; ranks beyond Qwen3-VL's are words no text has.
"""

import json
from pathlib import Path

from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer
from transformers.tokenization_utils_base import AddedToken

from coordexp.model.tiny.parts import SPECIAL_TOKENS
from tests.support.real_vocabulary import CHAT_TEMPLATE, build_qwen_tokenizer, write_qwen_tokenizer, write_small_files

# Entries of the tokenizer, the id of <|coord_0|>, rows of the tables.
VOCABULARIES = {
    "qwen3_vl": (151_669, 151_670, 151_936),
    "qwen3_vl_moe": (151_669, 151_670, 151_936),
    "qwen2_5_vl": (151_665, 151_666, 151_936),
    "qwen3_5": (248_077, 248_078, 248_320),
    "qwen3_5_moe": (248_077, 248_078, 248_320),
}
_NUM_RANKS = {"qwen3_5": 248_044, "qwen3_5_moe": 248_044}
_MORE_TOKENS = (
    "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>",
    "<|audio_pad|>",
)  # fmt: skip
_TOKENS = {"qwen2_5_vl": SPECIAL_TOKENS[:22]} | dict.fromkeys(_NUM_RANKS, SPECIAL_TOKENS + _MORE_TOKENS)
# As the larger ones of Qwen3.5 have it: a thought is open unless the template is told otherwise.
_THINKING = """\
{%- if add_generation_prompt %}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}
"""
_IMAGES_OF_2_5 = {
    "min_pixels": 3_136,
    "max_pixels": 12_845_056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
}


def _text(hidden: int, layers: int, heads: int, groups: int, **more: object) -> dict[str, object]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers}
    return {**sizes, "num_attention_heads": heads, "num_key_value_heads": groups, **more}


def _vision(depth: int, hidden: int, intermediate: int, heads: int, **more: object) -> dict[str, object]:
    sizes = {"depth": depth, "hidden_size": hidden, "intermediate_size": intermediate, "num_heads": heads}
    return {**sizes, "temporal_patch_size": 2, "spatial_merge_size": 2, **more}


def _mrope(*sections: int, theta: int, **more: object) -> dict[str, object]:
    return {"rope_type": "default", "rope_theta": theta, "mrope_section": list(sections), **more}


def _delta(keys: int, values: int, width: int) -> dict[str, object]:
    heads = {"linear_num_key_heads": keys, "linear_num_value_heads": values}
    return {**heads, "linear_key_head_dim": width, "linear_value_head_dim": width}


_DEEPSTACK = {"num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24], "patch_size": 16}
_PLAIN = {"num_position_embeddings": 2304, "patch_size": 16}
_WINDOWS = {"patch_size": 14, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]}
_ROPE_3 = _mrope(24, 20, 20, theta=5_000_000, mrope_interleaved=True)
_ROPE_35 = _mrope(11, 11, 10, theta=10_000_000, mrope_interleaved=True, partial_rotary_factor=0.25)
_NARROW_35 = _ROPE_35 | {"mrope_section": [1, 1, 0]}


def _sparse(experts: int, chosen: int, width: int, **more: object) -> dict[str, object]:
    return {"num_experts": experts, "num_experts_per_tok": chosen, "moe_intermediate_size": width, **more}


# Family, whether embedding and head are one table, text and vision.
_SHAPES: dict[str, tuple[str, bool, dict[str, object], dict[str, object]]] = {
    "Qwen3.5-0.8B": (
        "qwen3_5", True,
        _text(1024, 24, 8, 2, head_dim=256, intermediate_size=3584, rope_parameters=_ROPE_35, **_delta(16, 16, 128)),
        _vision(12, 768, 3072, 12, out_hidden_size=1024, **_PLAIN),
    ),
    "Qwen3.5-9B": (
        "qwen3_5", False,
        _text(4096, 32, 16, 4, head_dim=256, intermediate_size=12288, rope_parameters=_ROPE_35, **_delta(16, 32, 128)),
        _vision(27, 1152, 4304, 16, out_hidden_size=4096, **_PLAIN),
    ),
    "Qwen2.5-VL-3B": (
        "qwen2_5_vl", True,
        _text(2048, 36, 16, 2, intermediate_size=11008, rope_parameters=_mrope(16, 24, 24, theta=1_000_000)),
        _vision(32, 1280, 3420, 16, out_hidden_size=2048, **_WINDOWS),
    ),
    "Qwen2.5-VL-7B": (
        "qwen2_5_vl", False,
        _text(
            3584, 28, 28, 4, intermediate_size=18944, vocab_size=152_064,
            rope_parameters=_mrope(16, 24, 24, theta=1_000_000),
        ),
        _vision(32, 1280, 3420, 16, out_hidden_size=3584, **_WINDOWS),
    ),
    "Qwen3-VL-30B-A3B": (
        "qwen3_vl_moe", False,
        _text(2048, 48, 32, 4, head_dim=128, intermediate_size=6144, rope_parameters=_ROPE_3, **_sparse(128, 8, 768)),
        _vision(27, 1152, 4304, 16, out_hidden_size=2048, **_DEEPSTACK),
    ),
    "Qwen3.5-35B-A3B": (
        "qwen3_5_moe", False,
        _text(
            2048, 40, 16, 2, head_dim=256, rope_parameters=_ROPE_35,
            **_delta(16, 32, 128), **_sparse(256, 8, 512, shared_expert_intermediate_size=512),
        ),
        _vision(27, 1152, 4304, 16, out_hidden_size=2048, **_PLAIN),
    ),
    "small qwen3_5": (
        "qwen3_5", True,
        _text(128, 24, 8, 2, head_dim=16, intermediate_size=384, rope_parameters=_NARROW_35, **_delta(4, 4, 16)),
        _vision(12, 64, 128, 4, out_hidden_size=128, **_PLAIN),
    ),
    "small qwen2_5_vl": (
        "qwen2_5_vl", True,
        _text(128, 36, 8, 2, intermediate_size=384, rope_parameters=_mrope(2, 3, 3, theta=1_000_000)),
        _vision(32, 64, 128, 4, out_hidden_size=128, **_WINDOWS),
    ),
    "small qwen3_vl_moe": (
        "qwen3_vl_moe", False,
        _text(
            128, 48, 8, 2, head_dim=16, intermediate_size=384,
            rope_parameters=_ROPE_3 | {"mrope_section": [4, 2, 2]}, **_sparse(8, 2, 48),
        ),
        _vision(27, 64, 128, 4, out_hidden_size=128, **_DEEPSTACK),
    ),
    "small qwen3_5_moe": (
        "qwen3_5_moe", False,
        _text(
            128, 40, 8, 2, head_dim=16, rope_parameters=_NARROW_35,
            **_delta(4, 4, 16), **_sparse(8, 2, 48, shared_expert_intermediate_size=48),
        ),
        _vision(27, 64, 128, 4, out_hidden_size=128, **_PLAIN),
    ),
}  # fmt: skip


def family_config(name: str) -> dict[str, object]:
    """Return ``config.json`` of a published model, or of a narrow one, in the form in which it is published."""
    model_type, tied, text, vision = _SHAPES[name]
    num_entries, _, num_rows = VOCABULARIES[model_type]
    tokens = _TOKENS.get(model_type, SPECIAL_TOKENS)
    ids = dict(zip(tokens, range(num_entries - len(tokens), num_entries), strict=True))
    text = {
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": ids["<|im_end|>"],
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": tied,
        "vocab_size": num_rows,
    } | text
    of_model = {
        "image_token_id": ids["<|image_pad|>"],
        "model_type": model_type,
        "tie_word_embeddings": tied,
        "video_token_id": ids["<|video_pad|>"],
        "vision_config": vision,
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
    }
    return text | of_model if model_type == "qwen2_5_vl" else of_model | {"text_config": text}  # flat on the hub


SHAPES = {name: shape[0] for name, shape in _SHAPES.items()}


def write_family_files(path: Path, model_type: str, scratch: Path) -> None:
    """Write tokenizer, chat template and processors of a family; ``scratch`` is a folder that there is not yet."""
    scratch.mkdir()
    if model_type in ("qwen3_vl", "qwen3_vl_moe"):
        write_small_files(path, write_qwen_tokenizer(scratch))
        return
    tokens = _TOKENS[model_type]
    tokenizer = _with_ranks(build_qwen_tokenizer(), _NUM_RANKS.get(model_type), tokens)
    tokenizer.chat_template = CHAT_TEMPLATE + (_THINKING if model_type in _NUM_RANKS else "")
    tokenizer.save_pretrained(scratch)
    write_small_files(path, scratch)
    if model_type == "qwen2_5_vl":
        (path / "preprocessor_config.json").write_text(json.dumps(_IMAGES_OF_2_5, indent=2))
        (path / "video_preprocessor_config.json").unlink()


def _with_ranks(known: Qwen2Tokenizer, num_ranks: int | None, tokens: tuple[str, ...]) -> Qwen2Tokenizer:
    """Return a tokenizer with so many ranks, and these tokens behind them."""
    bpe = json.loads(known.backend_tokenizer.to_str())["model"]
    vocab = dict(bpe["vocab"])
    vocab |= {f"<unused {number}>": number for number in range(len(vocab), num_ranks or len(vocab))}
    tokenizer = Qwen2Tokenizer(
        vocab=vocab, merges=[(left, right) for left, right in bpe["merges"]], pad_token=tokens[0]
    )
    ordinary = SPECIAL_TOKENS[14:]
    tokenizer.add_tokens([AddedToken(token, special=token not in ordinary) for token in tokens])
    tokenizer.eos_token = "<|im_end|>"  # only now: the class gives it the first free id
    return tokenizer
