"""Shapes of the published dense Qwen3-VL models, for a memory estimate before anything is downloaded.

Source: their config.json on the Hugging Face hub.
"""

from transformers import Qwen3VLConfig

_PATCHES = {"patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 2304}
_SMALL_TOWER = {"depth": 24, "hidden_size": 1024, "num_heads": 16, "intermediate_size": 4096} | _PATCHES
_LARGE_TOWER = {"depth": 27, "hidden_size": 1152, "num_heads": 16, "intermediate_size": 4304} | _PATCHES
_TEXT = {"vocab_size": 151_936, "num_key_value_heads": 8, "head_dim": 128}
_SMALL_DEEPSTACK, _LARGE_DEEPSTACK = [5, 11, 17], [8, 16, 24]

NUM_TOKENS = 151_669  # entries of their tokenizer
MAX_PIXELS = 16_777_216  # of their image processor


def published_config(hub_id: str) -> Qwen3VLConfig | None:
    """Return the configuration of a model named ``.../Qwen3-VL-4B-...``; None for an unknown one."""
    for mark, (text, vision, tied) in _SHAPES.items():
        if f"Qwen3-VL-{mark}-" in f"{hub_id}-":
            return Qwen3VLConfig(
                text_config={**_TEXT, **text, "tie_word_embeddings": tied},
                vision_config={**vision, "out_hidden_size": text["hidden_size"]},
                tie_word_embeddings=tied,
            )
    return None


def _text(hidden: int, layers: int, heads: int, middle: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": middle,
    }


_SHAPES: dict[str, tuple[dict[str, int], dict[str, int | list[int]], bool]] = {
    "2B": (_text(2048, 28, 16, 6144), {**_SMALL_TOWER, "deepstack_visual_indexes": _SMALL_DEEPSTACK}, True),
    "4B": (_text(2560, 36, 32, 9728), {**_SMALL_TOWER, "deepstack_visual_indexes": _SMALL_DEEPSTACK}, True),
    "8B": (_text(4096, 36, 32, 12288), {**_LARGE_TOWER, "deepstack_visual_indexes": _LARGE_DEEPSTACK}, False),
}
