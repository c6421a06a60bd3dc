"""How long an experiment will take, as far as that can be known before it runs."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from coordexp.cluster.slots import count_slots
from coordexp.config.schema import ExperimentConfig
from coordexp.detection.coco_files import read_ground_truth
from coordexp.errors import DataError
from coordexp.runs.plan import RunPlan

# Of the embedded model on generated shapes, one CPU core for each run; measured, good to a factor of two.
_TRAIN_IMAGES_PER_SECOND = 60.0
_EVALUATED_IMAGES_PER_SECOND = 40.0
_SECONDS_AROUND_A_RUN = 20.0


@dataclass(frozen=True)
class Estimate:
    """What is known of the time.

    Attributes:
        seconds: until all runs are finished; None where nothing is known.
        basis: what the number rests on, or how to get one.
        run_seconds: of one whole run; None where nothing is known.
    """

    seconds: float | None
    basis: str
    run_seconds: float | None = None


def estimate(plans: Sequence[RunPlan], *, slots: int) -> Estimate:
    """Estimate the time that the unfinished runs take.

    Args:
        plans: all runs of an experiment.
        slots: how many run at once.
    """
    todo = [plan for plan in plans if not plan.is_finished()]
    if not todo:
        return Estimate(0.0, "all runs are finished")
    done = [status.seconds for plan in plans if (status := plan.status()) and status.state == "finished"]
    rounds = ceil(len(todo) / slots)
    if done:
        mean = sum(done) / len(done)
        return Estimate(rounds * mean, f"the mean of {len(done)} finished runs, {slots} at once", mean)
    config = plans[0].config
    if config.model.path == "embedded" and config.data.format == "shapes" and not config.cluster.gpus_per_worker:
        one = _seconds_of_embedded_run(config)
        return Estimate(rounds * one, f"rates measured on CPU cores, {slots} at once", one)
    images = config.training.max_steps * config.global_batch_size
    return Estimate(
        None,
        f"known once a run has finished: {rounds} x ({images:,} images / your images per second + the evaluation), "
        f"{slots} at once",
    )


def num_val_images(config: ExperimentConfig) -> int | None:
    """Return the images of the validation split, all of which count in AP; None where its file cannot be read now."""
    if config.data.format == "shapes":
        return config.data.shapes.num_val
    path = config.data.val_annotations
    try:
        return None if path is None else len(read_ground_truth(path).sizes_px)
    except DataError:
        return None


def local_slots(config: ExperimentConfig) -> int:
    """Return how many runs fit on this machine's CPUs, or the user's limit where GPUs decide; at least 1."""
    cluster = config.cluster
    needed = cluster.num_workers * cluster.cpus_per_worker
    cpus = len(os.sched_getaffinity(0))
    if cluster.executor == "inline" or cluster.gpus_per_worker or cpus < needed:
        return 1 if cluster.executor == "inline" else cluster.max_concurrent_runs or 1
    return count_slots(cluster, [{"CPU": float(cpus)}])


def _seconds_of_embedded_run(config: ExperimentConfig) -> float:
    training, evaluation = config.training, config.evaluation
    trained = training.max_steps * config.global_batch_size
    final = config.data.shapes.num_val * len(evaluation.decoding)
    between = (training.max_steps - 1) // evaluation.every_steps if evaluation.every_steps else 0
    evaluated = final + between * evaluation.subset_images
    return trained / _TRAIN_IMAGES_PER_SECOND + evaluated / _EVALUATED_IMAGES_PER_SECOND + _SECONDS_AROUND_A_RUN
