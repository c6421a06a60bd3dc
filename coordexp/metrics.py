"""The registry of metric names: what each means, its unit, which direction is better, and where it is shown.

Metrics of boxes other than COCO's AP are declared where they are computed, in ``coordexp/detection/metrics``.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, cast

Direction = Literal["higher", "lower", "none"]
Decoding = Literal["constrained", "free"]
BoxKind = Literal["argmax", "expected"]
Split = Literal["train", "eval"]

DECODINGS: tuple[Decoding, ...] = ("constrained", "free")
BOX_KINDS: tuple[BoxKind, ...] = ("argmax", "expected")
LOSS_NAMES = ("total_loss", "text_loss", "coord_loss", "coord_ce_loss")
SUBSET = "subset/"


@dataclass(frozen=True)
class Gauge:
    """A live value as it is published."""

    name: str  # without the prefix of Ray
    description: str  # one line, with the unit
    labels: tuple[str, ...] = ()  # what tells its series apart, besides the run


@dataclass(frozen=True)
class Metric:
    """One metric; or a family of metrics, whose name has a word in braces, such as ``grad_norm/{term}``.

    Metrics of an evaluation are declared without the prefix that :class:`MetricName` puts before them.
    """

    name: str
    description: str
    unit: str = ""  # what a value counts or measures; "" for a pure number
    direction: Direction = "none"  # which is better
    head: str = ""  # head of its column in tables; "" for the name
    in_report: bool = True  # whether the report's tables have a column for it
    gauge: str = ""  # name of the Gauge that shows it live; "" if none does
    labels: Mapping[str, str] = field(default_factory=dict[str, str])  # of the gauge; the word in braces is one too

    @property
    def column(self) -> str:
        """Head of its column in tables."""
        return self.head or self.name

    @property
    def is_count(self) -> bool:
        return self.unit in ("objects", "pieces", "images")


@dataclass(frozen=True)
class MetricName:
    """The name of one number of an evaluation: ``[subset/]DECODING/[BOXES/]METRIC``."""

    decoding: Decoding
    metric: str  # ``AP``, ``num_objects``, ``malformed/unclosed`` ...
    boxes: BoxKind | None = None  # None for a metric that does not depend on the boxes, such as a count
    subset: bool = False  # measured during training on a subset; otherwise on all images

    def __str__(self) -> str:
        words = [self.decoding, self.metric] if self.boxes is None else [self.decoding, self.boxes, self.metric]
        prefix = SUBSET if self.subset else ""
        return prefix + "/".join(words)

    @classmethod
    def parse(cls, name: str) -> "MetricName | None":
        """Return the parts of a logged name; None if it does not come from an evaluation."""
        match = _EVALUATION_NAME.fullmatch(name)
        if match is None:
            return None
        decoding = cast("Decoding", match["decoding"])
        boxes = cast("BoxKind | None", match["boxes"])
        return cls(decoding, match["metric"], boxes, subset=bool(match["subset"]))


_EVALUATION_NAME = re.compile(
    f"(?P<subset>{SUBSET})?(?P<decoding>{'|'.join(DECODINGS)})/"
    rf"(?:(?P<boxes>{'|'.join(BOX_KINDS)})/)?(?P<metric>[A-Za-z]\w*(?:/[a-z]\w*)?)"
)


def headline(reading: BoxKind) -> str:
    """Return the name of the AP by which a run is compared. ``reading`` is how boxes of its group are read."""
    return str(MetricName("constrained", "AP", reading))


def subset_headline(reading: BoxKind) -> str:
    """Return the name of the same AP on the subset that is evaluated during training."""
    return str(MetricName("constrained", "AP", reading, subset=True))


_AP = {
    "AP": "COCO AP, mean over IoU .50:.95",
    "AP50": "COCO AP at IoU .50",
    "AP75": "COCO AP at IoU .75",
    "AP_small": "COCO AP of boxes under 32x32 px",
    "AP_medium": "COCO AP of boxes between 32x32 and 96x96 px",
    "AP_large": "COCO AP of boxes above 96x96 px",
}
AP_METRICS = tuple(Metric(name, text, direction="higher", gauge="coordexp_ap") for name, text in _AP.items())
AP_NAMES = tuple(_AP)
_CUT = {
    "AP_cut": "AP with each answer cut at the first object that repeats an earlier one exactly",
    "AP50_cut": "the same at IoU .50",
}
ANSWER_METRICS = tuple(Metric(name, text, "", "higher", gauge="coordexp_detection") for name, text in _CUT.items())
"""AP of the same answers in another reading, by kind of boxes."""
TOP_TOKENS = (5, 20, 128)
"""How many of the likeliest tokens a server may return: 5 or 20 with OpenAI's interface, up to 128 with vLLM."""
SERVED_AP = {number: f"AP_top{number}" for number in TOP_TOKENS}
"""By number of tokens, the AP of expected boxes that a client of a server computes from these tokens alone."""
SERVED_METRICS = tuple(
    Metric(name, f"AP of boxes by expectation over the {number} likeliest tokens alone", direction="higher")
    for number, name in SERVED_AP.items()
)
_OTHER_BOX_METRIC = Metric("{metric}", "declared in coordexp/detection/metrics", gauge="coordexp_detection")

_REPEATED = "share of objects that repeat an earlier one of their answer: same description, same bins"
_MASS = "probability of the coord vocabulary where a coord token was emitted, mean; of digits in the text arm"
_TOKENS = "generated tokens, malformed ones too, over well-formed objects"
_WALL = "wall time of generation, all workers at once, over well-formed objects of the same images"
_IMAGES = "generation: images over wall time, all workers at once; free decoding: images that the grammar had changed"
_BOXES = "generation: well-formed objects over wall time, all workers at once, of the same images"
GENERATION_METRICS = (
    Metric("num_objects", "well-formed objects in the generated text", "objects", head="objects"),
    Metric("malformed", "malformed pieces in the generated text", "pieces", "lower"),
    Metric("malformed_fraction", "malformed / (malformed + well-formed)", "fraction", "lower", "malformed, share"),
    Metric("unknown_category", "objects whose description names no category", "objects", "lower", "unknown category"),
    Metric("duplicate_rate", _REPEATED, "fraction", "lower", "repeated objects, share"),
    Metric("longest_repeat", "most such objects in a row in one answer", "objects", "lower", in_report=False),
    Metric("empty_images", "images without one well-formed object", "images", "lower", "empty answers"),
    Metric("truncated_images", "images whose generation hit max_new_tokens", "images", "lower", "answers cut off"),
    Metric(
        "truncated_fraction", "the same, of all evaluated images", "fraction", "lower", "answers cut off, share", False
    ),
    Metric("coord_mass", _MASS, "fraction", "higher", "probability of coord tokens"),
    Metric("tokens_per_object", _TOKENS, "tokens", "lower", "tokens/object", in_report=False),  # in a table of its own
    Metric("seconds_per_object", _WALL, "seconds", "lower", "s/object", in_report=False),
    Metric("images_per_second", _IMAGES, "images/s", "higher", "images/s", in_report=False),
    Metric("boxes_per_second", _BOXES, "objects/s", "higher", "boxes/s", in_report=False),
    Metric("seconds", "wall time of the evaluation", "seconds", "lower", in_report=False),
)
_MALFORMED_KIND = Metric("malformed/{kind}", "malformed pieces of one kind", "pieces", "lower")
_LOSSES: dict[str, str] = {
    "total_loss": "the weighted sum that is minimised; its terms differ between groups",
    "text_loss": "cross-entropy of supervised text tokens",
    "coord_loss": "alpha L1 + beta (1 - GIoU) of the expected boxes",
    "coord_ce_loss": "cross-entropy of coord tokens",
}
_COORD_MASS = "probability of the coord vocabulary at coord positions; of digits in the text arm"
_COORD_DIAG: dict[str, tuple[str, str, Direction]] = {
    "enabled": ("1 if the distribution terms (softCE, W1, gate) train", "", "none"),
    "loss": ("weighted sum of softCE, W1 and gate", "nats", "lower"),
    "box_l1": ("L1 distance of expected boxes, summed over the four coordinates", "image sides", "lower"),
    "box_giou": ("1 - GIoU of expected boxes", "", "lower"),
    "soft_ce": ("cross-entropy against a Gaussian around the true bin", "nats", "lower"),
    "w1": ("Wasserstein-1 distance of the bin distribution", "fraction", "lower"),
    "gate": ("-log of the coord vocabulary's probability", "nats", "lower"),
    "coord_vocab_mass": (_COORD_MASS, "fraction", "higher"),
    "coord_tokens": ("coord tokens measured", "tokens", "none"),
    "expected_bin_mae": ("|expected bin - true bin|, mean", "bins", "lower"),
    "expected_bin_p90": ("|expected bin - true bin|, 90th percentile", "bins", "lower"),
    "true_bin_prob": ("probability of the true bin within the coord vocabulary", "fraction", "higher"),
    "entropy": ("entropy of the bin distribution", "nats", "none"),
    "width": ("standard deviation of the bin distribution", "bins", "none"),
    "inverted_fraction": ("expected boxes with swapped corners", "fraction", "lower"),
}

SLOTS = ("x1", "y1", "x2", "y2")
"""The four coordinates of a box, in the order in which they are written."""
RANKS = {"rank_1": 0, "rank_2": 1, "rank_3_4": 2, "rank_5_8": 4, "rank_9_up": 8}
"""Classes of the place of an object in its answer, each with the first place that belongs to it, from 0."""
PLACES = (*SLOTS, *RANKS)
_PLACE_MEASURES: dict[str, tuple[str, str, Direction]] = {
    "expected_bin_mae": ("|expected bin - true bin|, mean", "bins", "lower"),
    "argmax_bin_mae": ("|likeliest bin - true bin|, mean", "bins", "lower"),
    "entropy": ("entropy of the bin distribution", "nats", "none"),
    "width": ("standard deviation of the bin distribution", "bins", "none"),
    "far_10_fraction": ("coordinates whose mean is over 10 bins from their likeliest bin", "fraction", "lower"),
    "far_50_fraction": ("coordinates whose mean is over 50 bins from their likeliest bin", "fraction", "lower"),
}
PLACE_MEASURES = tuple(_PLACE_MEASURES)
"""Measures that are logged for each of :data:`PLACES`, as ``coord_diag/MEASURE/PLACE``."""


def _speed(name: str, description: str, unit: str, direction: Direction) -> Metric:
    return Metric(f"throughput/{name}", description, unit, direction, gauge=f"coordexp_{name}")


_OTHERS = (
    Metric("learning_rate", "learning rate of the linear layers", gauge="coordexp_learning_rate"),
    Metric("grad_norm", "norm of the whole gradient before clipping", gauge="coordexp_grad_norm"),
    Metric("mean_grad_norm", "the same, mean over every step so far"),
    Metric("clipped_fraction", "steps whose gradient was scaled down to max_grad_norm, of all so far", "fraction"),
    Metric(
        "alarms",
        "alarms raised so far in this run: silent terms, train and eval losses far apart",
        direction="lower",
        gauge="coordexp_alarms",
    ),
    Metric("epoch", "passes over the training images", "epochs"),
    Metric("num_supervised_tokens", "supervised tokens since the last row of this name", "tokens"),
    Metric("num_images", "images since the last row of this name", "images"),
    _speed("images_per_second", "training images a second, all workers of the run", "images/s", "higher"),
    _speed("tokens_per_second", "training tokens a second, all workers of the run", "tokens/s", "higher"),
    _speed("data_wait_fraction", "share of training in which workers waited for data", "fraction", "lower"),
    _speed("mfu", "model FLOP utilisation, a fraction", "fraction", "higher"),
    Metric("final/train_seconds", "wall time of training", "seconds", "lower"),
    Metric("final/seconds", "wall time of a whole run: training, evaluation and merge", "seconds", "lower"),
    Metric("final/steps", "optimizer steps done", "steps"),
    Metric("final/merge_lost_logits", "rms(merged - adapter) / rms(adapter - base) of the logits", "fraction", "lower"),
    Metric("final/merge_lost_weights", "norm of rounding over that of the change, worst kind", "fraction", "lower"),
    Metric("final/train_boxes", "boxes of the training images", "boxes"),
    Metric("final/val_boxes", "boxes of the validation images", "boxes"),
    Metric("final/boxes_over_max_objects", "training boxes over data.max_objects: never learnt", "boxes", "lower"),
    Metric("final/boxes_over_max_length", "training boxes beyond data.max_length: never learnt", "boxes", "lower"),
    Metric(
        "final/boxes_over_max_new_tokens",
        "validation boxes beyond an answer of evaluation.max_new_tokens: never written",
        "boxes",
        "lower",
    ),
    Metric("codec_ceiling/AP", "AP of the ground truth itself after encode and decode", direction="higher"),
)


def _loss(name: str, description: str, **labels: str) -> Metric:
    return Metric(name, description, direction="lower", gauge="coordexp_loss", labels=labels)


def _of_split(split: Split) -> list[Metric]:
    """Return the losses and coordinate diagnostics of one split."""
    note = ""
    prefix = "coord_diag"
    if split == "eval":
        note = ", on validation images"
        prefix = "eval_coord_diag"
    metrics: list[Metric] = []
    for name, description in _LOSSES.items():
        term = name.removesuffix("_loss")
        metrics.append(_loss(f"{split}_{name}", f"{description}{note}", phase=split, term=term))
    for name, (description, unit, direction) in _COORD_DIAG.items():
        labels = {"phase": split, "name": name}
        gauge = "coordexp_coord_diag"
        metrics.append(Metric(f"{prefix}/{name}", f"{description}{note}", unit, direction, gauge=gauge, labels=labels))
    return metrics + _of_places(prefix, note)


def _of_places(prefix: str, note: str) -> list[Metric]:
    """Return the metrics by slot and by rank. They are a hundred, so they are recorded and not shown live."""
    metrics: list[Metric] = []
    for measure, (description, unit, direction) in _PLACE_MEASURES.items():
        for place in PLACES:
            where = f"at {place}" if place in SLOTS else f"of objects at {place.replace('_', ' ')} of their answer"
            metrics.append(Metric(f"{prefix}/{measure}/{place}", f"{description}, {where}{note}", unit, direction))
    return metrics


REGISTRY: dict[str, Metric] = {metric.name: metric for metric in (*_of_split("train"), *_of_split("eval"), *_OTHERS)}
"""Every metric with a single name. Metrics of evaluations and families are not in it; :func:`find_metric` knows all."""

_TERM = "(?P<term>[A-Za-z][A-Za-z0-9_]*)"
FAMILIES: dict[str, Metric] = {
    f"grad_norm/{_TERM}": Metric(
        "grad_norm/{term}", "norm of one weighted term's gradient, all trainable parameters, before clipping"
    ),
    f"train_extra/{_TERM}": _loss("train_extra/{term}", "a further loss term in training", phase="train"),
    f"eval_extra/{_TERM}": _loss("eval_extra/{term}", "a further loss term on validation images", phase="eval"),
    r"comparison/[\w.\- ]+/[A-Za-z][A-Za-z0-9_]*": Metric(
        "comparison/{groups}/{value}", "of a group or of A_minus_B, from the report, on the ablation's run"
    ),
}
"""Families of metrics, by the pattern of their names."""

_BOX_LABELS = ("images", "decoding", "boxes", "metric")
_AP_GAUGE = "COCO AP of the last evaluation: on the subset during training, on all images at the end"
GAUGES: tuple[Gauge, ...] = (
    Gauge("coordexp_loss", "mean of a loss term since the last row", ("phase", "term")),
    Gauge("coordexp_coord_diag", "coordinate diagnostics, as MLflow's coord_diag/*", ("phase", "name")),
    Gauge("coordexp_ap", _AP_GAUGE, _BOX_LABELS),
    Gauge("coordexp_detection", "other metrics of the boxes in the last evaluation: AR100, F1_50 ...", _BOX_LABELS),
    *(Gauge(metric.gauge, metric.description) for metric in _OTHERS if metric.gauge),
)
"""All gauges that show a metric."""


def loss_metric(split: Split, name: str) -> str:
    """Return the logged name of a loss, such as ``train_text_loss``, ``coord_diag/w1`` or ``eval_coord_diag/w1``."""
    if split == "train" and name.startswith("coord_diag/"):
        return name
    return f"{split}_{name}"


def loss_names(logged: Iterable[str]) -> tuple[str, ...]:
    """Return LOSS_NAMES, and ``extra/NAME`` for each further term among logged names, sorted."""
    extra_names = {name.removeprefix("train_") for name in logged if name.startswith("train_extra/")}
    return (*LOSS_NAMES, *sorted(extra_names))


def loss_head(name: str) -> str:
    """Return how tables name a loss: ``coord ce`` for ``coord_ce_loss``, ``NAME`` for ``extra/NAME``."""
    if name.startswith("extra/"):
        return name.removeprefix("extra/")
    return name.removesuffix("_loss").replace("_", " ")


def find_metric(name: str) -> Metric | None:
    """Return the declaration of a logged name, with the labels of its gauge; None if nothing declares it."""
    if name in REGISTRY:
        return REGISTRY[name]
    parsed = MetricName.parse(name)
    if parsed is None:
        for pattern, family in FAMILIES.items():
            match = re.fullmatch(pattern, name)
            if match is not None:
                return replace(family, labels={**family.labels, **match.groupdict()})
        return None
    if parsed.boxes is not None:
        return None if "/" in parsed.metric else _box_metric(parsed)
    if parsed.metric.startswith("malformed/"):
        return _MALFORMED_KIND
    return next((metric for metric in GENERATION_METRICS if metric.name == parsed.metric), None)


def _box_metric(name: MetricName) -> Metric:
    declared = {metric.name: metric for metric in (*AP_METRICS, *ANSWER_METRICS, *SERVED_METRICS)}
    values = ("subset" if name.subset else "all", name.decoding, name.boxes or "", name.metric)
    labels = dict(zip(_BOX_LABELS, values, strict=True))
    return replace(declared.get(name.metric, _OTHER_BOX_METRIC), labels=labels)


def gauge_of(name: str) -> tuple[str, Mapping[str, str]] | None:
    """Return the gauge that shows a logged metric, and its labels; None if it is not shown live."""
    metric = find_metric(name)
    if metric is None or not metric.gauge:
        return None
    return metric.gauge, metric.labels
