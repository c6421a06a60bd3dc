"""Qwen3.5, dense: 0.8B, 4B, 9B, 27B.

Three of four text layers are gated delta nets, which carry a state from token to token. The vocabulary is larger than
that of Qwen3-VL. The larger models think before they answer unless the chat template is told otherwise.
"""

from coordexp.model.families.family import Family

# Two of the four layers are of each kind, so that both are tested. A quarter of each head is rotated, as in the family.
TINY_TEXT: dict[str, object] = {
    "head_dim": 32,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
    },
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}

QWEN3_5 = Family(
    model_type="qwen3_5",
    title="Qwen3.5 (dense)",
    tiny_text={**TINY_TEXT, "intermediate_size": 96},
    tiny_vision={"num_position_embeddings": 256},
    recurrent=True,
)
