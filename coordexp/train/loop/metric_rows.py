"""Means of terms and diagnostics -> metric rows with registered names (DESIGN 7)."""

from collections.abc import Mapping

from coordexp.config.schema import ExperimentConfig
from coordexp.losses.criterion import Criterion
from coordexp.train.checks import diagnostics
from coordexp.train.loop.throughput import Utilisation
from coordexp.train.setup.objective import loss_metrics
from coordexp.train.trainer import StepLog


def means_to_metrics(
    means: Mapping[str, float], *, prefix: str, config: ExperimentConfig, criterion: Criterion
) -> dict[str, float]:
    """Name the means of a window; a term that had nothing to count is absent.

    Args:
        means: by term and diagnostic name.
        prefix: ``train`` or ``eval``.
        config: gives the weights that enter composite names.
        criterion: weighs the total.
    """
    named = loss_metrics(means, criterion, prefix=prefix, config=config)
    head = "coord_diag/" if prefix == "train" else "eval_coord_diag/"
    return named | {head + name: means[name] for name in (*diagnostics.NAMES, diagnostics.P90_NAME) if name in means}


def train_metrics(
    log: StepLog, *, config: ExperimentConfig, criterion: Criterion, utilisation: Utilisation
) -> dict[str, float]:
    """Return the metrics of a logging step."""
    metrics = means_to_metrics(log.means, prefix="train", config=config, criterion=criterion)
    metrics["coord_diag/coord_tokens"] = log.sums["num_coord_tokens"]
    return metrics | {
        "learning_rate": log.learning_rate,
        "grad_norm": log.grad_norm,
        "epoch": log.epoch,
        "num_supervised_tokens": log.sums["num_tokens"],
        "num_images": log.sums["num_images"],
        "throughput/images_per_second": log.sums["num_images"] / max(log.seconds, 1e-9),
        "throughput/tokens_per_second": log.sums["num_sequence_tokens"] / max(log.seconds, 1e-9),
        "throughput/data_wait_fraction": log.data_wait_fraction,
        "throughput/mfu": utilisation.fraction(log.sums, seconds=log.seconds),
    }
