"""Qwen3-VL, dense: 2B, 4B, 8B, 32B."""

from coordexp.model.families.family import Family

QWEN3_VL = Family(
    model_type="qwen3_vl",
    title="Qwen3-VL (dense)",
    tiny_text={
        "intermediate_size": 96,
        "head_dim": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 2, 2]},
    },
    tiny_vision={"num_position_embeddings": 256, "deepstack_visual_indexes": [0]},
    is_sized=True,
)
