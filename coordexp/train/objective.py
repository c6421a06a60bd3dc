"""Configuration -> criterion, and criterion values -> the metric names of DESIGN 7."""

from collections.abc import Mapping

from coordexp.config.schema import CoordSoftCeW1, ExperimentConfig, Objective
from coordexp.losses.coord_distribution import soft_ce_term, w1_term
from coordexp.losses.criterion import Criterion, WeightedTerm
from coordexp.losses.term import find_term

_NAMED = ("text_ce", "coord_ce", "box_l1", "box_giou", "soft_ce", "w1", "gate")


def build_criterion(config: ExperimentConfig) -> Criterion:
    """Weigh the terms as the flags say; every named term is there, so that all groups log the same."""
    objective, distribution = config.objective, config.custom.coord_soft_ce_w1
    geometric = objective.lambda_coord if objective.use_geom_loss else 0.0
    on = 1.0 if distribution.enabled else 0.0
    shape = {
        "sigma": distribution.target_sigma,
        "truncate": distribution.target_truncate,
        "temperature": distribution.temperature,
    }
    terms = [
        WeightedTerm(find_term("text_ce"), 1.0),
        WeightedTerm(find_term("coord_ce"), objective.lambda_coord_ce if objective.use_coord_ce else 0.0),
        WeightedTerm(find_term("box_l1"), geometric * objective.alpha_l1),
        WeightedTerm(find_term("box_giou"), geometric * objective.beta_giou),
        WeightedTerm(soft_ce_term(**shape), on * distribution.soft_ce_weight),
        WeightedTerm(w1_term(**shape), on * distribution.w1_weight),
        WeightedTerm(find_term("gate"), on * distribution.gate_weight),
    ]
    terms += [WeightedTerm(find_term(name), weight) for name, weight in sorted(objective.extra.items())]
    return Criterion(terms)


def loss_metrics(
    values: Mapping[str, float], *, prefix: str, objective: Objective, distribution: CoordSoftCeW1
) -> dict[str, float]:
    """Name the values of :class:`~coordexp.train.meter.Meter`, e.g. ``train_text_loss``, ``coord_diag/w1``.

    ``*_coord_loss`` is alpha L1 + beta (1 - GIoU) for every group, whatever its weight there;
    ``coord_diag/loss`` is the weighted sum of the distribution terms.

    Args:
        values: term values and ``total``.
        prefix: ``train`` or ``eval``.
        objective: gives alpha and beta.
        distribution: gives the weights of the distribution terms.
    """
    diagnostics = "coord_diag/" if prefix == "train" else "eval_coord_diag/"
    metrics = {
        f"{prefix}_total_loss": values["total"],
        f"{prefix}_text_loss": values["text_ce"],
        f"{prefix}_coord_ce_loss": values["coord_ce"],
        f"{prefix}_coord_loss": objective.alpha_l1 * values["box_l1"] + objective.beta_giou * values["box_giou"],
        diagnostics + "enabled": float(distribution.enabled),
        diagnostics + "soft_ce": values["soft_ce"],
        diagnostics + "w1": values["w1"],
        diagnostics + "gate": values["gate"],
        diagnostics + "loss": distribution.soft_ce_weight * values["soft_ce"]
        + distribution.w1_weight * values["w1"]
        + distribution.gate_weight * values["gate"],
    }
    extra = {f"{prefix}_extra/{name}": values[name] for name in objective.extra if name not in _NAMED}
    return metrics | extra
