"""The head of a learned score: what it fits, that nothing in it is chance, and its file."""

import pytest
import torch

from coordexp.errors import CheckpointError
from coordexp.model.score_head import SCORE_HEAD, ScoreHead, _targets, fit_score_head


def _boxes(num=600, size=12, noise=0.05, seed=0):
    """Hidden states of which one direction tells the IoU, three boxes an image."""
    generator = torch.Generator().manual_seed(seed)
    ious = torch.rand(num, generator=generator, dtype=torch.float64)
    hidden = torch.randn(num, size, generator=generator)
    hidden[:, 3] = (ious + noise * torch.randn(num, generator=generator)).float() * 40 + 7
    return hidden, ious, torch.arange(num) // 3


def test_targets_have_the_iou_as_their_mean():
    ious = torch.tensor([0.0, 0.1, 0.34, 0.999, 1.0], dtype=torch.float64)
    targets = _targets(ious)
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(targets @ torch.linspace(0, 1, 11, dtype=torch.float64), ious)
    assert targets[2].nonzero().flatten().tolist() == [3, 4]
    assert targets[2, 3].item() == pytest.approx(0.6)


def test_it_learns_what_there_is_to_learn_on_boxes_it_has_not_seen():
    head = fit_score_head(*_boxes(), boxes="own")
    hidden, ious, _ = _boxes(num=300, seed=1)
    found = head(hidden)
    assert (found - ious).abs().mean() < 0.07  # .04 is the noise
    assert ((found >= 0) & (found <= 1)).all()
    assert float(head.about["error"]) == pytest.approx(0.05, abs=0.02)
    assert float(head.about["constant_error"]) == pytest.approx(0.25, abs=0.02)
    assert {key: head.about[key] for key in ("boxes", "num_boxes", "images")} == {
        "boxes": "own", "num_boxes": "600", "images": "200",
    }  # fmt: skip


def test_without_anything_to_learn_it_gives_the_mean():
    """Negative control: the same IoUs on other boxes' hidden states; the penalty keeps it from learning chance."""
    hidden, ious, images = _boxes(num=400, size=100)
    head = fit_score_head(hidden, ious.roll(7), images, boxes="own")
    fresh, _, _ = _boxes(num=300, size=100, seed=1)
    assert head(fresh).std() < 0.06
    assert head(fresh).mean().item() == pytest.approx(0.5, abs=0.05)
    assert float(head.about["error"]) < 1.1 * float(head.about["constant_error"])


def test_the_same_boxes_give_the_same_head_in_any_order_and_dtype():
    hidden, ious, images = _boxes(num=120)
    head = fit_score_head(hidden, ious, images, boxes="own")
    assert torch.equal(head.weight_QD, fit_score_head(hidden, ious, images, boxes="own").weight_QD)
    order = torch.randperm(120, generator=torch.Generator().manual_seed(0))
    shuffled = fit_score_head(hidden[order], ious[order], images[order], boxes="own")
    torch.testing.assert_close(shuffled(hidden), head(hidden), rtol=0, atol=1e-4)
    low = fit_score_head(hidden.bfloat16(), ious, images, boxes="own")
    assert low(hidden.bfloat16()).dtype == torch.float32


def test_an_entry_that_never_varies_is_harmless():
    hidden, ious, images = _boxes(num=120)
    hidden[:, 5] = 1000.0
    head = fit_score_head(hidden, ious, images, boxes="own")
    before = head(hidden)
    hidden[:, 5] += 0.5
    torch.testing.assert_close(head(hidden), before)


@pytest.mark.parametrize("num", [0, 3])
def test_too_few_boxes_get_one_score(num):
    hidden, ious, images = (values[:num] for values in _boxes())
    head = fit_score_head(hidden, ious, images, boxes="own")
    assert head(torch.randn(4, 12)).tolist() == pytest.approx([0.5] * 4)


def test_file(tmp_path):
    head = fit_score_head(*_boxes(num=60), boxes="perturbed")
    head.save(tmp_path)
    again = ScoreHead.load(tmp_path).for_size(12)
    assert torch.equal(again.weight_QD, head.weight_QD)
    assert torch.equal(again.bias_Q, head.bias_Q)
    assert again.about == head.about
    with pytest.raises(CheckpointError, match=r"a weight of shape \(11, 13\) for this checkpoint, got \(11, 12"):
        again.for_size(13)
    (tmp_path / SCORE_HEAD).write_bytes(b"none")
    with pytest.raises(CheckpointError, match="no learned score can be read from it"):
        ScoreHead.load(tmp_path)
    (tmp_path / SCORE_HEAD).unlink()
    with pytest.raises(CheckpointError, match=r"score_head.safetensors: file not found; a learned score is trained by"):
        ScoreHead.load(tmp_path)
