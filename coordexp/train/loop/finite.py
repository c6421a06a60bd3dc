"""Steps whose loss or gradients are not finite: they never reach the weights, and end the run with a sentence.

On a CPU, and under DeepSpeed, which reads the norm itself, each step is looked at before the optimizer moves. On a GPU
a look makes the host wait for all work before it, so there the optimizer itself is kept from moving: a fused AdamW
leaves weights and moments alone where its ``found_inf`` is 1. From the first bad step on it stays 1, so that the
weights are those from before that step whenever somebody looks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, distributed
from torch.optim import Optimizer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from coordexp.errors import DivergedError
from coordexp.runs import ranks

_LISTED_IMAGES = 32


@dataclass(frozen=True)
class _Step:
    """One optimizer step, as long as nobody has looked at it; every tensor is where it was computed."""

    number: int
    loss: Tensor
    norm: Tensor
    image_ids: tuple[Tensor, ...]


class FiniteSteps:
    """Watches loss and gradient norm of every step, alike on every rank."""

    def __init__(self, bad_terms: Callable[[], list[str]], *, late: bool) -> None:
        """Start before the first step.

        Args:
            bad_terms: names of the loss terms and diagnostics that are not finite; asked once there is a bad step.
            late: look where :meth:`look` is called, and until then hold the optimizer; else at every step.
        """
        self._bad_terms = bad_terms
        self._late = late
        self._image_ids: list[Tensor] = []
        self._loss: Tensor | None = None
        self._steps: list[_Step] = []
        self._found: Tensor | None = None

    def add(self, share: Tensor, image_ids: Tensor) -> None:
        """Add a microbatch of the present step: this rank's part of the loss, and its images."""
        self._loss = share.detach() if self._loss is None else self._loss + share.detach()
        self._image_ids.append(image_ids)

    def end(self, step: int, norm: Tensor, optimizer: Optimizer) -> None:
        """End a step, before ``optimizer`` moves.

        Args:
            step: its number, from 1.
            norm: of all gradients, the same on every rank; DeepSpeed writes one that is not finite as -1.
            optimizer: held from the first bad step on, where nobody looks at once.

        Raises:
            DivergedError: if it is not finite and is looked at.
        """
        assert self._loss is not None
        if ranks.in_process_group():
            distributed.all_reduce(self._loss)
        self._steps.append(_Step(step, self._loss, norm.to(self._loss.device), tuple(self._image_ids)))
        self._loss, self._image_ids = None, []
        if not self._late:
            self.look()
            return
        last = self._steps[-1]
        is_bad = (~(last.loss.isfinite() & norm.isfinite()) | (norm < 0)).to(torch.float32)
        self._found = is_bad if self._found is None else torch.maximum(self._found, is_bad)
        vars(optimizer)["found_inf"] = self._found  # where a gradient scaler would leave it for a fused optimizer

    def look(self) -> None:
        """Read the steps since the last look, in one copy.

        Raises:
            DivergedError: naming the first bad step, its terms and its images.
        """
        steps, self._steps = self._steps, []
        if not steps:
            return
        read = torch.stack([torch.stack([step.loss.double(), step.norm.double()]) for step in steps]).tolist()
        for step, (loss, norm) in zip(steps, read, strict=True):
            if not (math.isfinite(loss) and math.isfinite(norm)) or norm < 0:
                raise DivergedError(self._sentence(step, loss, norm))

    def _sentence(self, step: _Step, loss: float, norm: float) -> str:
        bad, images = self._bad_terms(), torch.cat(step.image_ids).tolist()
        listed = ", ".join(map(str, images[:_LISTED_IMAGES])) + (", ..." if len(images) > _LISTED_IMAGES else "")
        return (
            f"step {step.number}: the loss is {loss}, the gradient norm {norm} "
            f"({'not finite: ' + ', '.join(bad) if bad else 'every loss term is finite'}) on images {listed}; "
            "the weights were not changed, and checkpoints from before are kept"
        )


class LookBeforeRecords(TrainerCallback):
    """Looks at the steps before anything of them is written: a row, a checkpoint, an evaluation.

    It comes behind the callback that asks for those.
    """

    def __init__(self, steps: FiniteSteps) -> None:
        self._steps = steps

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Look where this step is logged, saved or evaluated, or is the last.

        Raises:
            DivergedError: if one of them is not finite.
        """
        if control.should_log or control.should_save or control.should_evaluate or state.global_step == args.max_steps:
            self._steps.look()
