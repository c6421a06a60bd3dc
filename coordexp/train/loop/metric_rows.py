"""Means of terms and diagnostics -> metric rows with registered names."""

from collections.abc import Mapping

from coordexp.config.schema import ExperimentConfig
from coordexp.losses.criterion import Criterion
from coordexp.metrics import Split, loss_metric
from coordexp.train.checks import diagnostics
from coordexp.train.loop.averages import StepLog
from coordexp.train.loop.throughput import Utilisation


def means_to_metrics(
    means: Mapping[str, float], *, split: Split, config: ExperimentConfig, criterion: Criterion
) -> dict[str, float]:
    """Name mean values, e.g. ``train_text_loss`` and ``coord_diag/w1``, and add what sums them up.

    ``*_coord_loss`` is alpha L1 + beta (1 - GIoU) for every group, whatever its weight there;
    ``coord_diag/loss`` is the weighted sum of the distribution terms. A value whose terms had
    nothing to count is absent; to the total such a term adds 0.

    Args:
        means: by name of the term or diagnostic.
        split: where they were measured.
        config: gives the weights that enter composite names.
        criterion: weighs the total.
    """
    objective, distribution = config.objective, config.custom.coord_soft_ce_w1
    sums = {
        "coord_loss": {"box_l1": objective.alpha_l1, "box_giou": objective.beta_giou},
        "coord_diag/loss": {
            "soft_ce": distribution.soft_ce_weight,
            "w1": distribution.w1_weight,
            "gate": distribution.gate_weight,
        },
    }
    names = {weighted.term.name: weighted.term.metric_name() for weighted in criterion.terms}
    names |= {name: f"coord_diag/{name}" for name in (*diagnostics.NAMES, diagnostics.P90_NAME)}
    values = {metric: means[name] for name, metric in names.items() if name in means}
    for metric, parts in sums.items():
        if all(part in means for part in parts):
            values[metric] = sum(weight * means[part] for part, weight in parts.items())
    values["total_loss"] = criterion.total(means)
    values["coord_diag/enabled"] = float(distribution.enabled)
    return {loss_metric(split, metric): value for metric, value in values.items()}


def train_metrics(
    log: StepLog, *, config: ExperimentConfig, criterion: Criterion, utilisation: Utilisation
) -> dict[str, float]:
    """Return the metrics of a logging step."""
    metrics = means_to_metrics(log.means, split="train", config=config, criterion=criterion)
    metrics["coord_diag/coord_tokens"] = log.sums["num_coord_tokens"]
    return metrics | {
        "learning_rate": log.learning_rate,
        "grad_norm": log.grad_norm,
        "epoch": log.epoch,
        "num_supervised_tokens": log.sums["num_tokens"],
        "num_images": log.sums["num_images"],
        "throughput/images_per_second": log.images_per_second,
        "throughput/tokens_per_second": log.sums["num_sequence_tokens"] / max(log.seconds, 1e-9),
        "throughput/data_wait_fraction": log.data_wait_fraction,
        "throughput/mfu": utilisation.fraction(log.sums, seconds=log.seconds),
    }
