"""FlashAttention is refused before anything is read, where it cannot run."""

import importlib.util

import pytest
import torch

from coordexp.errors import ConfigError, ResourceError
from coordexp.model.loading import check_attention, load
from coordexp.model.merging.proof import default_samples

FLASH = "flash_attention_2"


@pytest.fixture
def with_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


@pytest.fixture
def without_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.mark.usefixtures("without_package")
@pytest.mark.parametrize("elsewhere", [True, False])
def test_without_its_package(elsewhere):
    with pytest.raises(ResourceError, match="flash-attn.*sdpa"):
        check_attention(FLASH, elsewhere=elsewhere)


@pytest.mark.usefixtures("with_package")
def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ResourceError, match="CUDA"):
        check_attention(FLASH, dtype="bfloat16")
    check_attention(FLASH, dtype="bfloat16", elsewhere=True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_attention(FLASH, dtype="bfloat16")


@pytest.mark.usefixtures("with_package")
def test_in_float32():
    with pytest.raises(ConfigError, match=r"model\.dtype.*float32"):
        check_attention(FLASH, dtype="float32", elsewhere=True)


def test_sdpa_and_eager_agree(make_base):
    loaded = {name: load(make_base(), attn_implementation=name) for name in ("sdpa", "eager")}
    batch = default_samples(loaded["sdpa"].processor)[0]
    with torch.no_grad():
        logits = {name: one.model(**batch).logits for name, one in loaded.items()}
    for name, one in loaded.items():
        assert one.model.config._attn_implementation == name
        assert one.model.config.vision_config._attn_implementation == name
    torch.testing.assert_close(logits["sdpa"], logits["eager"], rtol=1e-4, atol=1e-5)
