"""The examples of docs/your-loss.md: a loss term and a group to copy."""

import shutil

import pytest
import torch

from coordexp.config import load_config
from coordexp.losses.terms import loss_terms
from coordexp.shipped import shipped_experiments
from coordexp.train.setup.weighted_terms import weighted_terms
from tests.support.terms import ROOT

EXAMPLES = ROOT / "examples"


@pytest.fixture
def spread(terms_dir):
    """The example, copied as the page says."""
    shutil.copy(EXAMPLES / "loss_term.py", terms_dir / "spread.py")
    return loss_terms()["spread"]()


def test_the_term_by_hand_at_its_gradient_and_without_a_box(spread, make_one_hot, make_case):
    """Three quarters on the true bin, a quarter 8 above: the mean lies 2 bins from the one and 6 from the other."""
    case = make_one_hot([30 + k for k in (200, 300, 600, 700)], [230, 330, 630, 730], [(0.2, 0.3, 0.6, 0.7)])
    logits = torch.full_like(case.logits, -1e4)
    for row, k in enumerate((230, 330, 630, 730)):
        logits[row, [k, k + 8]] = torch.tensor([0.75, 0.25]).log()
    case.logits = logits
    assert spread(case.inputs).item() == pytest.approx(4 * 0.003, rel=1e-4)
    case = make_case()
    (gradient,) = torch.autograd.grad(spread(case.inputs), case.logits)
    before, case.logits = spread(case.inputs), case.logits - gradient
    assert spread(case.inputs) < before
    assert spread(make_case(num_boxes=0, num_loose=0).inputs).item() == 0


@pytest.mark.usefixtures("spread")
def test_the_group_is_its_neighbour_and_one_term_more(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    shutil.copytree(shipped_experiments(), tmp_path / "experiments")
    shutil.copy(EXAMPLES / "group.yaml", tmp_path / "experiments" / "groups" / "C_spread.yaml")
    config = load_config(tmp_path / "experiments" / "tiny.yaml", ["ablation.groups=[C, C_spread]"])
    with_it, without = (
        {found.term.name: found.weight for found in weighted_terms(config.run(name, 0))} for name in ("C_spread", "C")
    )
    assert with_it == without | {"spread": 1.0}
