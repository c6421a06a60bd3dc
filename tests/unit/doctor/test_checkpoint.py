from pathlib import Path

import pytest
from huggingface_hub import constants

from coordexp.config.schema import ExperimentConfig
from coordexp.doctor.checkpoint import Base, examine_checkpoint
from coordexp.findings import collect
from tests.support.doctor import sparse_checkpoint

HUB_ID = "Qwen/Qwen3-VL-4B-Instruct"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Return a checkpoint of the published 4B shape: 8.3 GiB of weights that take no disk."""
    return sparse_checkpoint(tmp_path_factory.mktemp("sparse") / "base")


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """Return an empty hub cache; the hub is a port at which nobody listens."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path / "hub"


def _examine(path: object, **sections: dict[str, object]) -> tuple[Base | None, dict[str, tuple[str, str]]]:
    values = {"model": {"path": str(path)}, **sections}
    findings, base = collect(examine_checkpoint(ExperimentConfig.model_validate(values)))
    return base, {finding.check: (finding.verdict, finding.sentence) for finding in findings}


def test_gigabytes_are_described_and_none_is_read(whole):
    base, findings = _examine(whole)
    verdict, sentence = findings["weights"]
    assert verdict == "ok"
    for fact in ("4,437,815,808", "bfloat16", "8.27 GiB", "2 files"):
        assert fact in sentence
    assert "1,001 tokens" in findings["tokenizer"][1]
    assert "641..1640" in findings["tokenizer"][1]
    assert {verdict for verdict, _ in findings.values()} == {"ok"}
    assert base is not None
    assert str(base.dtype) == "torch.bfloat16"
    assert all(file.stat().st_blocks * 512 < 2**20 for file in whole.glob("*.safetensors"))


def test_a_hub_id_that_is_not_cached(hub, monkeypatch):
    base, findings = _examine(HUB_ID)
    verdict, sentence = findings["checkpoint"]
    assert verdict == "failure"
    for fact in (HUB_ID, str(hub), "model.path", "HF_HOME"):
        assert fact in sentence
    assert base is not None  # of the published shape, so that memory can be estimated
    assert base.offset_ids == range(151_670, 152_670)
    assert not hub.exists()
    monkeypatch.setattr("coordexp.doctor.checkpoint.hub_answers", lambda: True)
    verdict, sentence = _examine(HUB_ID)[1]["checkpoint"]
    assert verdict == "warning"
    for fact in (HUB_ID, str(hub), "8.27 GiB"):
        assert fact in sentence
    assert _examine("me/unknown")[0] is None
