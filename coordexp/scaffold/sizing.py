"""What training on some data takes: how large a batch the memory holds, and how long it goes on.

Memory is what ``doctor`` estimates; time is the operations of the model, as throughput counts them, over a share of
what the devices could do. Both are good for a first plan and no more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.bins import NUM_COORDS
from coordexp.coord_tokens.grammar.sequence import target_length
from coordexp.data.sample import Sample
from coordexp.doctor.checkpoint import Base
from coordexp.doctor.machine import Machine
from coordexp.doctor.memory import EVALUATION, SequenceSize, estimate
from coordexp.model.checkpoint.stored_model import Dimensions
from coordexp.train.loop.throughput import count_flops, peak_flops

ASSUMED_GPU_BYTES = 80 * 2**30
_SHARE_OF_MEMORY = 0.9
# Of the peak: measured on a core with the embedded model; on GPUs assumed, as in docs/cluster.md.
_SHARE_ON_CPU, _SHARE_ON_GPU = 0.4, 0.35
_H100 = 989e12
_SAMPLES_COUNTED = 2_000
_WORDS = 4  # tokens of a description, where no tokenizer says


@dataclass(frozen=True)
class Time:
    """How long one run trains.

    Attributes:
        seconds: of training alone; evaluation, start and merging come on top.
        basis: what the number rests on.
    """

    seconds: float
    basis: str


def largest_batch(
    run: ExperimentConfig, model: nn.Module, longest: SequenceSize, machine: Machine, *, phase: str
) -> int:
    """Return the largest batch, halved from the run's own, that one device holds when all are of the longest sequence.

    Args:
        run: its ``training.per_device_batch_size`` or ``evaluation.batch_size`` is where halving begins.
        model: of :func:`coordexp.doctor.memory.run_model`; the batch does not change it.
        longest: the longest sequence.
        machine: here; without a GPU a run that asks for one is reckoned for 80 GiB.
        phase: of :mod:`coordexp.doctor.memory`, training or evaluation.
    """
    on_gpu = run.cluster.gpus_per_worker > 0
    there = _SHARE_OF_MEMORY * (min(machine.gpu_bytes, default=ASSUMED_GPU_BYTES) if on_gpu else machine.ram_bytes)
    batch = run.evaluation.batch_size if phase == EVALUATION else run.training.per_device_batch_size
    while batch > 1:
        changed = run.model_copy(
            update={
                "training": run.training.model_copy(update={"per_device_batch_size": batch}),
                "evaluation": run.evaluation.model_copy(update={"batch_size": batch}),
                "data": run.data.model_copy(update={"bucket_size": None}),  # it may not divide this step
            }
        )
        (needed,) = estimate(model, changed, [longest], on_gpu=on_gpu)
        if needed.totals[phase] <= there:
            return batch
        batch //= 2
    return 1


def training_time(
    run: ExperimentConfig, base: Base, model: nn.Module, samples: Sequence[Sample], machine: Machine
) -> Time:
    """Return how long a run trains, by the sequences of its data.

    Args:
        run: the whole configuration.
        base: of the run.
        model: of :func:`coordexp.doctor.memory.run_model`.
        samples: of training.
        machine: here.
    """
    flops = flops_of_an_image(run, base, model, samples) * run.training.num_steps * run.global_batch_size
    if run.cluster.gpus_per_worker == 0:
        return Time(flops / (_SHARE_ON_CPU * _peak_of_a_core()), "on a core of this machine as busy as it is now")
    workers = run.cluster.num_workers
    devices = f"{workers} GPUs" if workers > 1 else "a GPU"
    if machine.gpu_names:
        peak, name = peak_flops(torch.device("cuda", 0), torch.bfloat16), machine.gpu_names[0]
        return Time(flops / (_SHARE_ON_GPU * peak * workers), f"{devices}, {name}, at {_SHARE_ON_GPU:.0%} of the peak")
    basis = f"{devices} of the kind H100, at {_SHARE_ON_GPU:.0%} of the peak; there is none here"
    return Time(flops / (_SHARE_ON_GPU * _H100 * workers), basis)


def _peak_of_a_core() -> float:
    """Return what a matrix product reaches here and now in one thread, which is what a worker of one CPU has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return peak_flops(torch.device("cpu"), torch.float32)
    finally:
        torch.set_num_threads(threads)


def flops_of_an_image(run: ExperimentConfig, base: Base, model: nn.Module, samples: Sequence[Sample]) -> float:
    """Return the mean operations of an image, from evenly spread ones."""
    counter = count_flops(model, base.model)
    merged = Dimensions.of(base.model).merge_size ** 2
    chosen = samples[:: max(1, len(samples) // _SAMPLES_COUNTED)]
    total = 0.0
    for sample in chosen:
        image = base.tokens_of_image((sample.width, sample.height), run.data.max_pixels)
        descriptions = sample.objects.largest(run.data.max_objects).descs
        answer = target_length(
            [_tokens(base, desc) for desc in descriptions], run.data.structure, num_box_tokens=NUM_COORDS
        )
        length = base.num_prompt_tokens + image + answer
        total += counter.step_flops(
            {
                "num_sequence_tokens": length,
                "num_sequence_tokens_squared": length**2,
                "num_patches": image * merged,
                "num_patches_squared": (image * merged) ** 2,
                "num_tokens": answer,
            }
        )
    return total / len(chosen)


def _tokens(base: Base, description: str) -> int:
    if base.encoding is None:
        return _WORDS
    return len(base.encoding.tokenizer.encode(description, add_special_tokens=False))
