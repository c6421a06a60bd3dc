"""Qwen3-VL, mixture of experts: 30B-A3B, 235B-A22B.

Routed experts are parameters, not linear layers: the attention gets adapters, experts and routers stay frozen. Files
hold the experts in one of two layouts that only their shapes tell apart, so transformers must load and save them.
"""

from coordexp.model.families.family import Family
from coordexp.model.families.qwen3_vl import QWEN3_VL

QWEN3_VL_MOE = Family(
    model_type="qwen3_vl_moe",
    title="Qwen3-VL (mixture of experts)",
    tiny_text={
        **QWEN3_VL.tiny_text,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,  # neither it nor its double is the hidden size, so the layouts differ in shape
    },
    tiny_vision=QWEN3_VL.tiny_vision,
    frozen=frozenset({"experts", "gate"}),
    on_disk="converted",
)
