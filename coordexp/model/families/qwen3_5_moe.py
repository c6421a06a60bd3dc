"""Qwen3.5, mixture of experts: 35B-A3B and larger.

Like the dense Qwen3.5, with routed experts that stay frozen and a shared expert that gets adapters. In the files of the
hub the experts are fused; a model made from a configuration is saved expert by expert. transformers reads both.
"""

from coordexp.model.families.family import Family
from coordexp.model.families.qwen3_5 import QWEN3_5, TINY_TEXT

QWEN3_5_MOE = Family(
    model_type="qwen3_5_moe",
    title="Qwen3.5 (mixture of experts)",
    tiny_text={
        **TINY_TEXT,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
    },
    tiny_vision=QWEN3_5.tiny_vision,
    recurrent=True,
    unadapted=frozenset({"shared_expert_gate"}),  # one number per token: the share of the shared expert
    frozen=frozenset({"experts", "gate", "shared_expert_gate"}),
    on_disk="converted",
)
