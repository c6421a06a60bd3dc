"""Alarms: a term that is on and teaches nothing, losses of one term that do not fit together."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from coordexp.losses.criterion import Criterion

_NEGLIGIBLE = 1e-3  # losses below are too small to be compared as a ratio


class AlarmState(TypedDict):
    """What a resumed run has to know: alarms so far, and how long each term has been silent."""

    raised: int
    silent: dict[str, int]


@dataclass
class Alarms:
    """Watches the terms that are on.

    Attributes:
        criterion: whose terms.
        patience: logging steps in a row before silence raises an alarm.
        factor: how far apart training and validation loss of a term may be.
        raised: alarms so far.
    """

    criterion: Criterion
    patience: int
    factor: float
    raised: int = 0
    _silent: Counter[str] = field(default_factory=Counter[str])

    def state(self) -> AlarmState:
        """Return what a checkpoint keeps."""
        return {"raised": self.raised, "silent": dict(self._silent)}

    def resume(self, state: AlarmState) -> None:
        """Go on from a checkpoint."""
        self.raised, self._silent = state["raised"], Counter(state["silent"])

    def silent_terms(self, gradients: Mapping[str, float], units: Mapping[str, float]) -> list[str]:
        """Look at one logging step.

        Args:
            gradients: norm of each term's gradient at the head's input.
            units: what there was to count since the last logging step, by name of the unit.

        Returns:
            A sentence for each term that has been without units or without gradient for
            ``patience`` logging steps now; a second sentence only after it has had units and gradient again.
        """
        sentences: list[str] = []
        for weighted in self.criterion.terms:
            name, unit = weighted.term.name, weighted.term.unit
            if weighted.weight == 0:
                continue
            missing = f"no {unit.replace('_', ' ')} to count" if not units[unit] else "zero gradient"
            self._silent[name] = self._silent[name] + 1 if not (units[unit] and gradients[name]) else 0
            if self._silent[name] == self.patience:
                sentences.append(
                    f"the term {name} is on (weight {weighted.weight:g}) but had {missing} in the last "
                    f"{self.patience} logging steps"
                )
        self.raised += len(sentences)
        return sentences

    def not_finite(self, names: list[str]) -> list[str]:
        """Return a sentence for metrics that are infinite or NaN."""
        self.raised += 1
        return [f"not finite, and left out of the record: {', '.join(names)}"]

    def apart(self, train: Mapping[str, float], validation: Mapping[str, float]) -> list[str]:
        """Compare the means of each term that is on, as training and validation measured them.

        Returns:
            A sentence for each term whose two means differ by more than ``factor``.
        """
        sentences: list[str] = []
        for weighted in self.criterion.terms:
            name = weighted.term.name
            if weighted.weight == 0 or name not in train or name not in validation:
                continue
            low, high = sorted((train[name], validation[name]))
            if high > _NEGLIGIBLE and high > self.factor * low:
                sentences.append(
                    f"the term {name} is {train[name]:.4g} in training and {validation[name]:.4g} on validation "
                    f"images, more than a factor {self.factor:g} apart: overfitting, or normalised differently"
                )
        self.raised += len(sentences)
        return sentences
