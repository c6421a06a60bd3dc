"""What watching costs: one training step of the tiny experiment, bare, and with diagnostics and logging.

``python tests/benchmarks/bench_diagnostics.py [STEPS]`` (default 20 of each kind, alternating). The tiny model is
the worst case: of a real model's step the terms and diagnostics are a far smaller part.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch.utils.data import DataLoader

from coordexp.config import group_config, load_config
from coordexp.data.batch import Batch
from coordexp.train.forward import count_units
from coordexp.train.loop.diagnostics import coord_diagnostics, gradients_at_hidden
from coordexp.train.setup.components import Components, build_components
from coordexp.train.setup.prepare import prepare_experiment

Kind = Literal["bare", "measured", "logging"]
KINDS: tuple[Kind, ...] = ("bare", "measured", "logging")
LIMIT = 0.03
SHAPES = ("data.shapes.num_train=64", "data.shapes.num_val=8")


def step(parts: Components, batch: Batch, *, kind: Kind) -> None:
    """Go forward and backward once: bare, as every training step does, or as a logging step does."""
    counts = count_units([batch])
    terms, hidden_TD = parts.forward_terms.with_hidden(parts.model, batch)
    if kind == "bare":
        share = sum(parts.criterion.shares(terms, counts).values(), torch.zeros(()))
    else:
        share, _ = parts.criterion(terms, counts)
        diagnostics = coord_diagnostics(terms)
        float(sum((value for value, _ in diagnostics.sums.values()), torch.zeros(())))
    if kind == "logging":
        norms = gradients_at_hidden(parts.criterion, terms, hidden_TD)
        float(sum(norms.values(), torch.zeros(())))
    share.backward()
    parts.model.zero_grad()


def seconds_of(action: Callable[[], None]) -> float:
    """Return the CPU seconds of one call."""
    started = time.process_time()
    action()
    return time.process_time() - started


def main(num_steps: int) -> int:
    """Print the share of a step that logging takes; 1 if it is over the limit at the shipped logging_steps."""
    torch.set_num_threads(1)
    recipe = Path(__file__).parents[2] / "experiments" / "tiny.yaml"
    with tempfile.TemporaryDirectory() as scratch:
        config = load_config(recipe, [f"experiment.runs_dir={scratch}", *SHAPES])
        config = group_config(config, "C", 0)
        prepare_experiment(config)
        parts = build_components(config)
        dataset = parts.encoding.dataset(parts.train.samples)
        batch = next(
            iter(DataLoader(dataset, config.training.per_device_batch_size, collate_fn=parts.encoding.collate))
        )
    parts.model.train()
    times: dict[Kind, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(num_steps + 1):
        for kind, found in times.items():
            found.append(seconds_of(lambda kind=kind: step(parts, batch, kind=kind)))
    bare, measured, logged = (statistics.median(times[kind][1:]) for kind in KINDS)  # the first of each warms up
    every = config.training.logging_steps
    print(f"bare step                              {bare * 1000:8.1f} ms   1.000")
    print(f"with diagnostics, terms of weight 0    {measured * 1000:8.1f} ms   {measured / bare:.3f}")
    print(f"with each term's gradient as well      {logged * 1000:8.1f} ms   {logged / bare:.3f}")
    share = (measured + (logged - measured) / every) / bare - 1
    print(f"cost, logging every {every} steps: {share:.2%} of a step (limit {LIMIT:.0%})")
    return int(share > LIMIT)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
