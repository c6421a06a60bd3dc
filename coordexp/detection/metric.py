"""What a metric of detections is: a declared number and the function that computes it."""

from collections.abc import Callable
from dataclasses import dataclass

from coordexp.detection.box_evaluation import BoxEvaluation
from coordexp.metrics import Metric


@dataclass(frozen=True)
class DetectionMetric:
    """A number that says how good the boxes of an evaluation are.

    Attributes:
        declared: its name, unit, direction and column.
        value: computes it; None where it is not defined.
    """

    declared: Metric
    value: Callable[[BoxEvaluation], float | None]

    @property
    def name(self) -> str:
        """The last part of its logged name: ``AP`` in ``constrained/expected/AP``."""
        return self.declared.name
