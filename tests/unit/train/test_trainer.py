"""What a step says that is not finite."""

import math

import pytest
import torch

from coordexp.errors import DivergedError
from coordexp.train.trainer import FiniteSteps


@pytest.mark.parametrize("num_images", [3, 32, 33])
def test_a_step_that_is_not_finite_names_its_terms_and_its_first_32_images(num_images: int) -> None:
    steps = FiniteSteps(lambda: ["box_giou"])
    steps.add(torch.tensor(1.0), torch.arange(num_images - 1))
    steps.add(torch.tensor(math.inf), torch.tensor([num_images - 1]))
    with pytest.raises(DivergedError, match="step 5") as caught:
        steps.end(5, torch.tensor(2.0))
    message = str(caught.value)
    assert "box_giou" in message
    assert ", ".join(map(str, range(min(num_images, 32)))) in message
    assert ("31, 32" in message) is False
    assert ("..." in message) is (num_images > 32)


def test_a_finite_step_passes_and_each_step_is_judged_by_itself() -> None:
    steps = FiniteSteps(list)
    steps.add(torch.tensor(math.inf), torch.arange(2))
    with pytest.raises(DivergedError, match="step 5"):
        steps.end(5, torch.tensor(2.0))
    steps.add(torch.tensor(1.0), torch.arange(2))
    steps.end(6, torch.tensor(2.0))


@pytest.mark.parametrize("norm", [math.nan, math.inf, -1.0])
def test_gradients_that_are_not_finite_end_a_run_with_a_finite_loss(norm: float) -> None:
    """DeepSpeed reports -1 for a norm that is not finite."""
    steps = FiniteSteps(list)
    steps.add(torch.tensor(1.0), torch.arange(2))
    with pytest.raises(DivergedError, match=rf"step 7.*\b1\.0\b.*{norm}"):
        steps.end(7, torch.tensor(norm))
