"""The head of a learned score: what it sees and fits, that nothing in it is chance, and its file."""

import math

import pytest
import torch

from coordexp.errors import CheckpointError
from coordexp.model import score_head
from coordexp.model.score_head import SCALARS, SCORE_HEAD, ScoreHead, _targets, box_scalars, fit_score_head


def _boxes(num=600, size=12, noise=0.05, seed=0):
    """Hidden states of which one direction tells the IoU, scalars that tell nothing, three boxes an image."""
    generator = torch.Generator().manual_seed(seed)
    ious = torch.rand(num, generator=generator, dtype=torch.float64)
    hidden = torch.randn(num, size, generator=generator)
    hidden[:, 3] = (ious + noise * torch.randn(num, generator=generator)).float() * 40 + 7
    scalars = torch.randn(num, len(SCALARS), generator=generator, dtype=torch.float64) - 3
    return hidden, scalars, ious, torch.arange(num) // 3


def _scores(head, hidden, scalars):
    return head.scores(head.read(hidden), scalars)


@pytest.fixture
def few_penalties(monkeypatch):
    """For tests of something else than the choice among all."""
    monkeypatch.setattr(score_head, "_PENALTIES", (1e-2, 1e-1))


def test_scalars_by_hand():
    # Widths 2, 4, 8 and none, which is that of a bin; a box of 10 by 0 bins with swapped corners; score .25.
    bin_width = math.log(1 / math.sqrt(12))
    expected = [math.log(2), math.log(4), math.log(8), bin_width, math.log(10), bin_width, math.log(0.25)]
    assert box_scalars((2.0, 4.0, 8.0, 0.0), (30, 7, 20, 7), 0.25) == pytest.approx(expected, rel=1e-12)
    assert len(expected) == len(SCALARS)
    assert all(map(math.isfinite, box_scalars((0.0,) * 4, (0, 0, 0, 0), 0.0)))


def test_targets_have_the_iou_as_their_mean():
    ious = torch.tensor([0.0, 0.1, 0.34, 0.999, 1.0], dtype=torch.float64)
    targets = _targets(ious)
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(targets @ torch.linspace(0, 1, 11, dtype=torch.float64), ious)
    assert targets[2].nonzero().flatten().tolist() == [3, 4]
    assert targets[2, 3].item() == pytest.approx(0.6)


def test_it_learns_what_there_is_to_learn_on_boxes_it_has_not_seen():
    head = fit_score_head(*_boxes(), boxes="own")
    hidden, scalars, ious, _ = _boxes(num=300, seed=1)
    found = _scores(head, hidden, scalars)
    assert (found - ious).abs().mean() < 0.07  # .04 is the noise
    assert ((found >= 0) & (found <= 1)).all()
    assert float(head.about["error"]) == pytest.approx(0.05, abs=0.02)
    assert float(head.about["constant_error"]) == pytest.approx(0.25, abs=0.02)
    assert {key: head.about[key] for key in ("boxes", "num_boxes", "images")} == {
        "boxes": "own", "num_boxes": "600", "images": "200",
    }  # fmt: skip


def test_without_anything_to_learn_it_gives_the_mean():
    """Negative control: the same IoUs on other boxes' hidden states; the penalty keeps it from learning chance."""
    hidden, scalars, ious, images = _boxes(num=400, size=100)
    head = fit_score_head(hidden, scalars, ious.roll(7), images, boxes="own")
    fresh = _scores(head, *_boxes(num=300, size=100, seed=1)[:2])
    assert fresh.std() < 0.06
    assert fresh.mean().item() == pytest.approx(0.5, abs=0.05)
    assert float(head.about["error"]) < 1.1 * float(head.about["constant_error"])


def test_scalars_that_tell_it_are_not_outvoted_by_a_large_hidden_state():
    """Few boxes, many entries: the hidden state counts as one scalar, so that the scalar's share is learnt."""
    hidden, scalars, ious, images = _boxes(num=200, size=400)
    hidden, scalars[:, 2] = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(5)), 9 + 0.2 * ious
    head = fit_score_head(hidden[:100], scalars[:100], ious[:100], images[:100], boxes="own")
    error = (_scores(head, hidden[100:], scalars[100:]) - ious[100:]).abs().mean()
    assert error < 0.08
    without = fit_score_head(
        hidden[:100], torch.zeros(100, len(SCALARS)).double(), ious[:100], images[:100], boxes="own"
    )
    assert (_scores(without, hidden[100:], scalars[100:] * 0) - ious[100:]).abs().mean() > 0.2


@pytest.mark.usefixtures("few_penalties")
def test_the_same_boxes_give_the_same_head_in_any_order_and_dtype():
    hidden, scalars, ious, images = boxes = _boxes(num=120)
    head = fit_score_head(*boxes, boxes="own")
    assert torch.equal(head.weight_QF, fit_score_head(*boxes, boxes="own").weight_QF)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(0))
    shuffled = fit_score_head(*(values[order] for values in boxes), boxes="own")
    torch.testing.assert_close(_scores(shuffled, hidden, scalars), _scores(head, hidden, scalars), rtol=0, atol=1e-4)
    low = fit_score_head(hidden.bfloat16(), scalars, ious, images, boxes="own")
    assert low.read(hidden.bfloat16()).dtype == torch.float32


@pytest.mark.usefixtures("few_penalties")
def test_an_entry_that_never_varies_is_harmless():
    hidden, scalars, ious, images = _boxes(num=120)
    hidden[:, 5], scalars[:, :4] = 1000.0, math.log(0.3)
    head = fit_score_head(hidden, scalars, ious, images, boxes="own")
    before = _scores(head, hidden, scalars)
    hidden[:, 5] += 0.5
    torch.testing.assert_close(_scores(head, hidden, scalars), before)


@pytest.mark.parametrize("num", [0, 3])
def test_too_few_boxes_get_one_score(num):
    head = fit_score_head(*(values[:num] for values in _boxes()), boxes="own")
    assert _scores(head, torch.randn(4, 12), torch.randn(4, len(SCALARS))).tolist() == pytest.approx([0.5] * 4)


@pytest.mark.usefixtures("few_penalties")
def test_file(tmp_path):
    head = fit_score_head(*_boxes(num=60), boxes="perturbed")
    head.save(tmp_path)
    again = ScoreHead.load(tmp_path).for_size(12)
    assert torch.equal(again.weight_QF, head.weight_QF)
    assert torch.equal(again.bias_Q, head.bias_Q)
    assert again.about == head.about
    with pytest.raises(CheckpointError, match=r"a weight of shape \(11, 20\) for this checkpoint, got \(11, 19"):
        again.for_size(13)
    (tmp_path / SCORE_HEAD).write_bytes(b"none")
    with pytest.raises(CheckpointError, match="no learned score can be read from it"):
        ScoreHead.load(tmp_path)
    (tmp_path / SCORE_HEAD).unlink()
    with pytest.raises(CheckpointError, match=r"score_head.safetensors: file not found; a learned score is trained by"):
        ScoreHead.load(tmp_path)
