"""The one registry of metric names: what each means, its unit, and which direction is better."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Literal

Direction = Literal["higher", "lower", "none"]
Decoding = Literal["constrained", "free"]
BoxKind = Literal["argmax", "expected"]

DECODINGS: tuple[Decoding, ...] = ("constrained", "free")
BOX_KINDS: tuple[BoxKind, ...] = ("argmax", "expected")
AP_NAMES = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")
BOX_METRICS = (*AP_NAMES, "AR100", "AP_oracle_score", "AP_constant_score", "F1_50", "F1_75", "calibration_error")
LOSS_NAMES = ("total_loss", "text_loss", "coord_loss", "coord_ce_loss")
SUBSET = "subset/"
BEST = "best/"


@dataclass(frozen=True)
class Metric:
    """One registered name, or one family of names.

    Attributes:
        name: the name; a family has a part in braces, ``grad_norm/{term}``.
        description: one line.
        unit: what a value counts or measures; "" for a pure number.
        direction: which direction is better; none where neither is.
    """

    name: str
    description: str
    unit: str = ""
    direction: Direction = "none"


_DETECTION: dict[str, tuple[str, Direction]] = {
    "AP": ("COCO AP, mean over IoU .50:.95", "higher"),
    "AP50": ("COCO AP at IoU .50", "higher"),
    "AP75": ("COCO AP at IoU .75", "higher"),
    "AP_small": ("COCO AP of boxes under 32x32 px", "higher"),
    "AP_medium": ("COCO AP of boxes between 32x32 and 96x96 px", "higher"),
    "AP_large": ("COCO AP of boxes above 96x96 px", "higher"),
    "AR100": ("COCO average recall with 100 detections an image", "higher"),
    "AP_oracle_score": ("AP if each score were the box's best IoU: what perfect ranking would give", "higher"),
    "AP_constant_score": ("AP if all scores were equal: what the boxes give without any ranking", "higher"),
    "F1_50": ("F1 of all detections at IoU .50, summed over categories", "higher"),
    "F1_75": ("F1 of all detections at IoU .75, summed over categories", "higher"),
    "calibration_error": ("expected calibration error of the score at IoU .50, 10 equal bins", "lower"),
}
_EVALUATION: dict[str, tuple[str, str, Direction]] = {
    "num_objects": ("well-formed objects in the generated text", "objects", "none"),
    "malformed": ("malformed pieces in the generated text", "pieces", "lower"),
    "malformed_fraction": ("malformed / (malformed + well-formed)", "fraction", "lower"),
    "unknown_category": ("objects whose description names no category", "objects", "lower"),
    "duplicates": ("objects that repeat an earlier one of the image: same description, IoU > .9", "objects", "lower"),
    "coord_mass": ("probability of the coord vocabulary where a coord token was emitted, mean", "fraction", "higher"),
    "empty_images": ("images without one well-formed object", "images", "lower"),
    "truncated_images": ("images whose generation hit max_new_tokens", "images", "lower"),
    "seconds": ("wall time of the evaluation", "seconds", "lower"),
}
_LOSSES: dict[str, str] = {
    "total_loss": "the weighted sum that is minimised; its terms differ between groups",
    "text_loss": "cross-entropy of supervised text tokens",
    "coord_loss": "alpha L1 + beta (1 - GIoU) of the expected boxes",
    "coord_ce_loss": "cross-entropy of coord tokens",
}
_COORD_DIAG: dict[str, tuple[str, str, Direction]] = {
    "enabled": ("1 if the distribution terms (softCE, W1, gate) train", "", "none"),
    "loss": ("weighted sum of softCE, W1 and gate", "nats", "lower"),
    "soft_ce": ("cross-entropy against a Gaussian around the true bin", "nats", "lower"),
    "w1": ("Wasserstein-1 distance of the bin distribution", "fraction", "lower"),
    "gate": ("-log of the coord vocabulary's probability", "nats", "lower"),
    "coord_vocab_mass": ("probability of the coord vocabulary at coord positions", "fraction", "higher"),
    "coord_tokens": ("coord tokens measured", "tokens", "none"),
    "expected_bin_mae": ("|expected bin - true bin|, mean", "bins", "lower"),
    "expected_bin_p90": ("|expected bin - true bin|, 90th percentile", "bins", "lower"),
    "true_bin_prob": ("probability of the true bin within the coord vocabulary", "fraction", "higher"),
    "entropy": ("entropy of the bin distribution", "nats", "none"),
    "width": ("standard deviation of the bin distribution", "bins", "none"),
    "inverted_fraction": ("expected boxes with swapped corners", "fraction", "lower"),
}
_OTHERS = (
    Metric("learning_rate", "learning rate of the linear layers"),
    Metric("grad_norm", "norm of the whole gradient before clipping", direction="none"),
    Metric("alarms", "alarms raised so far in this run: silent terms, train and eval losses far apart", "", "lower"),
    Metric("epoch", "passes over the training images", "epochs"),
    Metric("num_supervised_tokens", "supervised tokens since the last row of this name", "tokens"),
    Metric("num_images", "images since the last row of this name", "images"),
    Metric("throughput/images_per_second", "training images a second, all workers", "images/s", "higher"),
    Metric("throughput/tokens_per_second", "training tokens a second, all workers", "tokens/s", "higher"),
    Metric("throughput/data_wait_fraction", "share of training in which workers waited for data", "fraction", "lower"),
    Metric("throughput/mfu", "model FLOP utilisation", "fraction", "higher"),
    Metric("final/train_seconds", "wall time of training", "seconds", "lower"),
    Metric("final/seconds", "wall time of a whole run: training, evaluation and merge", "seconds", "lower"),
    Metric("final/steps", "optimizer steps done", "steps"),
    Metric("codec_ceiling/AP", "AP of the ground truth itself after encode and decode", direction="higher"),
)
FAMILIES = (
    Metric("{decoding}/malformed/{kind}", "malformed pieces of one kind", "pieces", "lower"),
    Metric("subset/{decoding}/malformed/{kind}", "malformed pieces of one kind, on the subset", "pieces", "lower"),
    Metric("grad_norm/{term}", "norm of one weighted term's gradient, all trainable parameters, before clipping"),
    Metric("train_extra/{term}", "a further loss term in training", direction="lower"),
    Metric("eval_extra/{term}", "a further loss term on validation images", direction="lower"),
    Metric("comparison/{groups}/{value}", "of a group or of A_minus_B, from the report, on the ablation's run"),
)
_PARTS = {
    "decoding": "constrained|free",
    "kind": "[a-z][a-z0-9_]*",
    "term": "[A-Za-z][A-Za-z0-9_]*",
    "groups": r"[\w.\- ]+",
    "value": "[A-Za-z][A-Za-z0-9_]*",
}


def detection_metric(decoding: Decoding, box: BoxKind, name: str, *, subset: bool = False) -> str:
    """Return e.g. ``constrained/expected/AP``, with ``subset/`` before it for an evaluation during training.

    Raises:
        ValueError: if the name that results is not registered.
    """
    return _registered(f"{SUBSET if subset else ''}{decoding}/{box}/{name}")


def evaluation_metric(decoding: Decoding, name: str, *, subset: bool = False) -> str:
    """Return e.g. ``free/malformed`` or ``free/malformed/unclosed``.

    Raises:
        ValueError: if the name that results is not registered.
    """
    return _registered(f"{SUBSET if subset else ''}{decoding}/{name}")


def is_registered(name: str) -> bool:
    """Say whether ``name`` is in the registry or belongs to a family."""
    return find_metric(name) is not None


def unregistered(names: Iterable[str]) -> list[str]:
    """Return the names that are not registered, sorted."""
    return sorted(name for name in set(names) if not is_registered(name))


def find_metric(name: str) -> Metric | None:
    """Return what the registry says about ``name``, or None."""
    if name in REGISTRY:
        return REGISTRY[name]
    return next((family for family, pattern in _PATTERNS if pattern.fullmatch(name)), None)


def best_name(name: str) -> str | None:
    """Return the ``best/...`` name under which the best value of a curve is kept, or None.

    MLflow's tables show the last value of a curve; where the best one matters it has its own name.
    """
    return BEST + name if BEST + name in REGISTRY else None


def is_better(name: str, value: float, than: float) -> bool:
    """Say whether ``value`` is better than ``than`` in the direction registered for ``name``."""
    metric = find_metric(name)
    if metric is None or metric.direction == "none":
        raise ValueError(f"metric {name!r} has no direction in which it gets better")
    return value > than if metric.direction == "higher" else value < than


def _registered(name: str) -> str:
    if not is_registered(name):
        raise ValueError(f"{name!r} is not in the registry of metric names (coordexp/metrics.py)")
    return name


def _evaluations(prefix: str, note: str) -> list[Metric]:
    detection = [
        Metric(f"{prefix}{decoding}/{box}/{name}", f"{text}, {box} boxes, {decoding} decoding{note}", "", direction)
        for decoding, box, (name, (text, direction)) in product(DECODINGS, BOX_KINDS, _DETECTION.items())
    ]
    counts = [
        Metric(f"{prefix}{decoding}/{name}", f"{text}, {decoding} decoding{note}", unit, direction)
        for decoding, (name, (text, unit, direction)) in product(DECODINGS, _EVALUATION.items())
    ]
    return detection + counts


def _training(prefix: str, diagnostics: str, note: str) -> list[Metric]:
    losses = [Metric(f"{prefix}_{name}", f"{text}{note}", "", "lower") for name, text in _LOSSES.items()]
    return losses + [
        Metric(f"{diagnostics}/{name}", f"{text}{note}", unit, direction)
        for name, (text, unit, direction) in _COORD_DIAG.items()
    ]


def _all_metrics() -> list[Metric]:
    metrics = [
        *_training("train", "coord_diag", ""),
        *_training("eval", "eval_coord_diag", ", on validation images"),
        *_evaluations("", ""),
        *_evaluations(SUBSET, ", on the subset evaluated during training"),
        *_OTHERS,
    ]
    tracked = {"eval_total_loss"} | {f"{SUBSET}{decoding}/{box}/AP" for decoding, box in product(DECODINGS, BOX_KINDS)}
    best = [
        Metric(BEST + metric.name, f"best so far: {metric.description}", metric.unit, metric.direction)
        for metric in metrics
        if metric.name in tracked
    ]
    return metrics + best


def _pattern(family: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", lambda part: f"(?:{_PARTS[part[1]]})", family))


REGISTRY: dict[str, Metric] = {metric.name: metric for metric in _all_metrics()}
_PATTERNS = tuple((family, _pattern(family.name)) for family in FAMILIES)
