"""What a step says that is not finite."""

import math

import pytest
import torch

from coordexp.errors import DivergedError
from coordexp.train.trainer import FiniteSteps


@pytest.mark.parametrize(("num_images", "ending"), [(3, "2"), (32, "31"), (33, "31, ...")])
def test_a_step_that_is_not_finite_names_its_images(num_images: int, ending: str) -> None:
    steps = FiniteSteps(lambda: ["text"])
    steps.add(torch.tensor(1.0), torch.arange(num_images - 1))
    steps.add(torch.tensor(math.inf), torch.tensor([num_images - 1]))
    with pytest.raises(DivergedError, match=rf"^step 5: .*not finite: text\) on images 0, 1, .*{ending};"):
        steps.end(5, torch.tensor(2.0))
    steps.add(torch.tensor(1.0), torch.arange(2))
    steps.end(6, torch.tensor(2.0))
    steps.add(torch.tensor(1.0), torch.arange(2))
    with pytest.raises(DivergedError, match=r"^step 7: the loss is 1\.0, the gradient norm nan"):
        steps.end(7, torch.tensor(math.nan))
