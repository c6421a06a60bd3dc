"""In which type coord offsets and the optimizer's moments of them train."""

import pytest
import torch

from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.offset_adapter import active_offset
from coordexp.coord_tokens.vocab import expand_vocab
from coordexp.model.tiny.parts import build_tokenizer
from coordexp.train.setup.components import param_groups, with_adapters
from tests.support.tiny_model import build_shallow


def _offset_model(model_dtype: torch.dtype, dtype: str) -> torch.nn.Module:
    tokenizer = build_tokenizer()
    model = build_shallow(tokenizer)
    vocab = expand_vocab(model, tokenizer)
    config = ExperimentConfig.model_validate(
        {
            "training": {"optimizer": "multimodal_coord_offset", "tuning": "lora"},
            "custom": {"coord_offset": {"enabled": True, "dtype": dtype}},
        }
    )
    adapted = with_adapters(config, model.to(model_dtype), offset_ids=list(vocab.coord_ids))
    assert param_groups(config, adapted)
    return adapted


@pytest.mark.parametrize(
    ("model_dtype", "dtype", "expected"),
    [
        (torch.bfloat16, "auto", torch.float32),
        (torch.float16, "auto", torch.float32),
        (torch.float32, "auto", torch.float32),
        (torch.bfloat16, "bfloat16", torch.bfloat16),
    ],
)
def test_offsets_train_in_float32_unless_something_else_is_asked_for(model_dtype, dtype, expected):
    model = _offset_model(model_dtype, dtype)
    table = active_offset(model).embed_offset
    assert table.requires_grad
    assert table.dtype == expected
    optimizer = torch.optim.AdamW([table], lr=1e-3)
    table.sum().backward()
    optimizer.step()
    assert {optimizer.state[table][name].dtype for name in ("exp_avg", "exp_avg_sq")} == {expected}
