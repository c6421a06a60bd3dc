"""Qwen2.5-VL: 3B, 7B, 32B, 72B.

On disk its weights have older names, and ``config.json`` is flat. Its own answers are in pixels of the resized picture.
"""

from coordexp.model.families.family import Family

QWEN2_5_VL = Family(
    model_type="qwen2_5_vl",
    title="Qwen2.5-VL",
    tiny_text={
        "intermediate_size": 96,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 2, 2]},
    },
    tiny_vision={"window_size": 32, "fullatt_block_indexes": [1]},
    on_disk="converted",
    json_boxes="pixels",
)
