"""Controlled experiments on coordinate losses for vision-language detectors.

The names below are the interface for scripts (docs/python.md). Each is imported when it is asked for: torch and the
libraries of models take seconds, and most commands need only some of them.
"""

import importlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordexp.config.load import load_config as load_config
    from coordexp.coord_tokens import codec as codec
    from coordexp.coord_tokens.expectation import CoordExp as CoordExp
    from coordexp.coord_tokens.expectation import expected_values as expected_values
    from coordexp.coord_tokens.layout import parse_targets as parse_targets
    from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter as install_coord_offset_adapter
    from coordexp.coord_tokens.soft_ce_w1 import coord_gate as coord_gate
    from coordexp.coord_tokens.soft_ce_w1 import gaussian_soft_targets as gaussian_soft_targets
    from coordexp.coord_tokens.soft_ce_w1 import soft_cross_entropy as soft_cross_entropy
    from coordexp.coord_tokens.soft_ce_w1 import wasserstein_1 as wasserstein_1
    from coordexp.coord_tokens.vocab import expand_vocab as expand_vocab
    from coordexp.detection.coco_eval import evaluate_detections as evaluate_detections
    from coordexp.evaluate.predict import predict as predict
    from coordexp.losses.coord_box import giou as giou
    from coordexp.losses.coord_box import l1 as l1
    from coordexp.losses.criterion import Criterion as Criterion
    from coordexp.losses.criterion import WeightedTerm as WeightedTerm
    from coordexp.losses.term import Term as Term
    from coordexp.losses.terms import loss_terms as loss_terms
    from coordexp.model.loading import load as load
    from coordexp.model.merging.merge import merge as merge
    from coordexp.own_loop import collate as collate
    from coordexp.own_loop import generate as generate
    from coordexp.own_loop import loss_of_batch as loss_of_batch
    from coordexp.own_loop import loss_of_logits as loss_of_logits
    from coordexp.own_loop import read_data as read_data
    from coordexp.statistics.bootstrap import paired_bootstrap as paired_bootstrap
    from coordexp.train.forward import count_units as count_units

_HOMES = {
    "Criterion": "coordexp.losses.criterion",
    "CoordExp": "coordexp.coord_tokens.expectation",
    "Term": "coordexp.losses.term",
    "WeightedTerm": "coordexp.losses.criterion",
    "collate": "coordexp.own_loop",
    "coord_gate": "coordexp.coord_tokens.soft_ce_w1",
    "count_units": "coordexp.train.forward",
    "evaluate_detections": "coordexp.detection.coco_eval",
    "expand_vocab": "coordexp.coord_tokens.vocab",
    "expected_values": "coordexp.coord_tokens.expectation",
    "gaussian_soft_targets": "coordexp.coord_tokens.soft_ce_w1",
    "generate": "coordexp.own_loop",
    "giou": "coordexp.losses.coord_box",
    "install_coord_offset_adapter": "coordexp.coord_tokens.offset_adapter",
    "l1": "coordexp.losses.coord_box",
    "load": "coordexp.model.loading",
    "load_config": "coordexp.config.load",
    "loss_of_batch": "coordexp.own_loop",
    "loss_of_logits": "coordexp.own_loop",
    "loss_terms": "coordexp.losses.terms",
    "merge": "coordexp.model.merging.merge",
    "paired_bootstrap": "coordexp.statistics.bootstrap",
    "parse_targets": "coordexp.coord_tokens.layout",
    "predict": "coordexp.evaluate.predict",
    "read_data": "coordexp.own_loop",
    "soft_cross_entropy": "coordexp.coord_tokens.soft_ce_w1",
    "wasserstein_1": "coordexp.coord_tokens.soft_ce_w1",
}
"""Where each name is defined. ``codec`` is a module of its own."""

__all__ = [  # noqa: RUF022 - in the order of docs/python.md
    "load",
    "expand_vocab",
    "install_coord_offset_adapter",
    "merge",
    "read_data",
    "collate",
    "loss_terms",
    "Term",
    "WeightedTerm",
    "Criterion",
    "count_units",
    "loss_of_batch",
    "loss_of_logits",
    "generate",
    "predict",
    "evaluate_detections",
    "paired_bootstrap",
    "load_config",
    "codec",
    "parse_targets",
    "CoordExp",
    "expected_values",
    "gaussian_soft_targets",
    "soft_cross_entropy",
    "wasserstein_1",
    "coord_gate",
    "giou",
    "l1",
]

# What coordexp logs is silent in somebody's script until that script asks for it (docs/python.md).
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> object:
    """Import a name of the interface when it is asked for, and keep it."""
    if name == "codec":
        value: object = importlib.import_module("coordexp.coord_tokens.codec")
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
