"""Teacher-forced validation: the terms and diagnostics of training, on validation samples."""

import contextlib
from collections.abc import Callable, Generator, Sequence

import torch
from torch import Tensor, nn

from coordexp.data.batches.collate import EncodedSample
from coordexp.evaluate.generate.generation import Samples
from coordexp.losses.criterion import Criterion
from coordexp.losses.term import UNITS
from coordexp.runs import ranks
from coordexp.train.batch import count_units
from coordexp.train.checks.diagnostics import NAMES, coord_diagnostics
from coordexp.train.forward import TermForward
from coordexp.train.loop.averages import Meter


def validation_means(
    samples: Samples,
    *,
    forward_terms: TermForward,
    criterion: Criterion,
    collate: Callable[[Sequence[EncodedSample]], dict[str, Tensor]],
    batch_size: int,
    device: torch.device,
) -> tuple[dict[str, float], dict[str, float]]:
    """Return means and sums, by name, of every term and diagnostic over all samples; ranks share the work.

    Normalised as in training: every term by its unit's count over all samples.
    """
    meter = Meter()
    # Every rank holds the same names, also one without a batch: the ranks add them up together.
    for name in (*(weighted.term.name for weighted in criterion.terms), *NAMES, *(f"num_{unit}" for unit in UNITS)):
        meter.add(name, torch.zeros((), device=device), 0)
    meter.add_errors(torch.zeros(0, device=device))
    model: nn.Module = forward_terms.base
    ones_U = torch.ones(len(UNITS), device=device)
    mine = range(ranks.rank() * batch_size, len(samples), ranks.world_size() * batch_size)
    with _evaluating(model), torch.no_grad():
        for start in mine:
            chosen = [samples[i] for i in range(start, min(start + batch_size, len(samples)))]
            batch = {name: value.to(device) for name, value in collate(chosen).items()}
            terms = forward_terms(model, batch)
            _, sums = criterion(terms, ones_U)
            meter.add_terms(criterion, sums, count_units([batch]))
            meter.add_diagnostics(coord_diagnostics(terms))
    return meter.read()


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Generator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
