"""Qwen3-VL, mixture of experts: 30B-A3B, 235B-A22B.

Routed experts are parameters and no linear layers: adapters go on the attention, experts and routers stay frozen. Files
hold the experts in one of two layouts, told apart by shape alone, so that transformers must load and save them.
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
        "moe_intermediate_size": 24,  # neither this nor twice as many is the hidden size: layouts can be told apart
    },
    tiny_vision=QWEN3_VL.tiny_vision,
    frozen=frozenset({"experts", "gate"}),
    on_disk="converted",
)
