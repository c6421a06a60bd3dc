"""Configuration -> criterion, and criterion values -> the metric names of DESIGN 7."""

from collections.abc import Mapping

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ConfigError
from coordexp.losses.criterion import Criterion, WeightedTerm
from coordexp.losses.term import find_term
from coordexp.losses.terms.coord_distribution import SoftTargetShape, soft_ce_term, w1_term

_NAMED = ("text_ce", "coord_ce", "box_l1", "box_giou", "soft_ce", "w1", "gate")


def build_criterion(config: ExperimentConfig) -> Criterion:
    """Weigh the terms as the flags say; every named term is there, so that all groups log the same.

    Raises:
        ConfigError: if ``objective.extra`` names an unknown term, or one that has its own switch.
    """
    objective, distribution = config.objective, config.custom.coord_soft_ce_w1
    repeated = sorted(set(objective.extra) & set(_NAMED))
    if repeated:
        raise ConfigError(
            f"objective.extra.{repeated[0]}: this term has a switch of its own; set its weight there, in objective "
            "or custom.coord_soft_ce_w1"
        )
    geometric = objective.lambda_coord if objective.use_geom_loss else 0.0
    on = 1.0 if distribution.enabled else 0.0
    shape = SoftTargetShape(
        sigma=distribution.target_sigma,
        truncate=distribution.target_truncate,
        temperature=distribution.temperature,
    )
    terms = [
        WeightedTerm(find_term("text_ce"), 1.0),
        WeightedTerm(find_term("coord_ce"), objective.lambda_coord_ce if objective.use_coord_ce else 0.0),
        WeightedTerm(find_term("box_l1"), geometric * objective.alpha_l1),
        WeightedTerm(find_term("box_giou"), geometric * objective.beta_giou),
        WeightedTerm(soft_ce_term(shape), on * distribution.soft_ce_weight),
        WeightedTerm(w1_term(shape), on * distribution.w1_weight),
        WeightedTerm(find_term("gate"), on * distribution.gate_weight),
    ]
    terms += [WeightedTerm(find_term(name), extra.weight) for name, extra in sorted(objective.extra.items())]
    return Criterion(terms)


def loss_metrics(
    means: Mapping[str, float], criterion: Criterion, *, prefix: str, config: ExperimentConfig
) -> dict[str, float]:
    """Name the mean term values, e.g. ``train_text_loss``, ``coord_diag/w1``.

    ``*_coord_loss`` is alpha L1 + beta (1 - GIoU) for every group, whatever its weight there;
    ``coord_diag/loss`` is the weighted sum of the distribution terms. A value whose terms had
    nothing to count (no box in the window) is absent; to the total such a term adds 0.

    Args:
        means: term values.
        criterion: weighs the total.
        prefix: ``train`` or ``eval``.
        config: the run's configuration.
    """
    objective, distribution = config.objective, config.custom.coord_soft_ce_w1
    diagnostics = "coord_diag/" if prefix == "train" else "eval_coord_diag/"
    sums: dict[str, dict[str, float]] = {
        f"{prefix}_text_loss": {"text_ce": 1.0},
        f"{prefix}_coord_ce_loss": {"coord_ce": 1.0},
        f"{prefix}_coord_loss": {"box_l1": objective.alpha_l1, "box_giou": objective.beta_giou},
        diagnostics + "soft_ce": {"soft_ce": 1.0},
        diagnostics + "w1": {"w1": 1.0},
        diagnostics + "gate": {"gate": 1.0},
        diagnostics + "loss": {
            "soft_ce": distribution.soft_ce_weight,
            "w1": distribution.w1_weight,
            "gate": distribution.gate_weight,
        },
        **{f"{prefix}_extra/{name}": {name: 1.0} for name in objective.extra if name not in _NAMED},
    }
    metrics = {
        name: sum(weight * means[part] for part, weight in parts.items())
        for name, parts in sums.items()
        if all(part in means for part in parts)
    }
    metrics[f"{prefix}_total_loss"] = criterion.total(means)
    metrics[diagnostics + "enabled"] = float(distribution.enabled)
    return metrics
