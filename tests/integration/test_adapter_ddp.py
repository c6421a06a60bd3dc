"""The adapter under DistributedDataParallel, with images: two gloo processes equal one."""

import pytest
import torch

from tests.integration.adapter_support import WORLD_SIZE, Case, ddp_worker, samples, two_steps
from tests.integration.ranks_support import run_ranks

CASES = (
    Case(tied=True, tie_head=True, tuning="lora"),
    Case(tied=True, tie_head=False, tuning="dora"),
    Case(tied=False, tie_head=False, tuning="lora", find_unused=True),
)


@pytest.fixture(scope="module")
def of_two_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp")
    args = (str(folder / "store"), CASES, str(folder / "results.pt"))
    run_ranks(ddp_worker, args, world_size=WORLD_SIZE)
    return torch.load(folder / "results.pt")


def _assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_ranks_equal_one_process(of_two_ranks, case):
    expected = two_steps(case, samples(), ranks=1)
    found = of_two_ranks[str(case)]
    _assert_equal(found, expected)
    parts = {kind: {n.split()[1] for n in expected if n.startswith(kind)} for kind in ("grad", "final")}
    assert parts["grad"] == parts["final"]  # nothing trainable is left without a gradient
    for part in ("visual.blocks", "visual.merger", "deepstack_merger_list", "language_model", "embed_offset"):
        assert any(float(t.abs().sum()) > 0 for name, t in expected.items() if name.startswith("grad") and part in name)
    assert float(expected["loss 1"]) < float(expected["loss 0"])


def test_a_rank_that_sees_no_coord_token_matters(of_two_ranks):
    """Negative control: rank 0's samples alone, which hold every coord token, give other numbers."""
    case = CASES[1]
    alone = two_steps(case, samples()[:2], ranks=1)
    with pytest.raises(AssertionError):
        _assert_equal(of_two_ranks[str(case)], alone)
    unseen = two_steps(case, samples()[2:], ranks=1)
    (embedding,) = [tensor for name, tensor in unseen.items() if name.startswith("grad") and "embed_offset" in name]
    assert not embedding.any()  # rank 1 adds nothing to these rows, and still takes part in their reduction
