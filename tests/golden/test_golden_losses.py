"""The loss functions against losses.json, and losses.json against its derivation."""

import json
import runpy
from pathlib import Path

import pytest
import torch

from coordexp.coord_tokens.expectation import expected_values
from coordexp.coord_tokens.soft_ce_w1 import coord_gate, gaussian_soft_targets, soft_cross_entropy, wasserstein_1
from coordexp.losses.coord_box import giou, l1

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "losses.json").read_text(encoding="utf-8"))


def test_the_file_is_what_its_script_derives():
    derived = runpy.run_path(str(HERE / "derive_losses.py"))["derive"]()
    assert json.loads(json.dumps(derived)) == GOLDEN


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_boxes(dtype):
    boxes, targets = (
        torch.tensor([case[key] for case in GOLDEN["boxes"]], dtype=dtype) / 1000 for key in ("box", "target")
    )
    # Two boxes of 1/1000 side by side: sides off by 2^-24 of 1e-3 each, areas by some 1e-4 in float32.
    atol = 1e-12 if dtype == torch.float64 else 5e-4
    assert giou(boxes, targets).tolist() == pytest.approx([case["giou"] for case in GOLDEN["boxes"]], abs=atol)
    assert l1(boxes, targets).tolist() == pytest.approx([case["l1"] for case in GOLDEN["boxes"]], abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_transport(dtype):
    p, q = (torch.tensor([case[key] for case in GOLDEN["transport"]], dtype=dtype) for key in ("p", "q"))
    found = wasserstein_1(p / p.sum(dim=1, keepdim=True), q / q.sum(dim=1, keepdim=True))
    assert found.tolist() == pytest.approx([case["w1"] for case in GOLDEN["transport"]], abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", GOLDEN["distributions"], ids=lambda case: str(case["centre"]))
def test_distributions(case, dtype):
    k = torch.arange(1000, dtype=torch.float64)
    logits = (-((k - case["centre"]) ** 2) / case["spread"]).to(dtype).unsqueeze(0)
    q = gaussian_soft_targets(torch.tensor([case["bin"]]), sigma=case["sigma"], truncate=case["radius"])
    beside = case["bin"] - 1 if case["bin"] else 1
    assert q[0, [case["bin"], beside]].tolist() == pytest.approx(
        [case["target_at_bin"], case["target_beside"]], rel=1e-6
    )
    assert expected_values(logits).item() == pytest.approx(case["expected"], abs=1e-12 if dtype == k.dtype else 1e-6)
    temperature = case["temperature"]
    # The targets are float32; cross-entropies reach 1e5 here, off by the rounding of the logits.
    soft_ce = soft_cross_entropy(logits, q, temperature=temperature).item()
    assert soft_ce == pytest.approx(case["soft_ce"], rel=1e-6, abs=1e-5)
    w1 = wasserstein_1((logits / temperature).softmax(dim=1), q).item()
    assert w1 == pytest.approx(case["w1"], abs=1e-5)


def test_gates():
    logits = torch.tensor([case["logits"] for case in GOLDEN["gates"]], dtype=torch.float64)
    assert coord_gate(logits, [2, 3, 4]).tolist() == pytest.approx(
        [case["gate"] for case in GOLDEN["gates"]], rel=1e-12
    )
