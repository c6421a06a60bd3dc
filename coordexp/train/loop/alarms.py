"""Alarms of a run: terms that teach nothing, losses that do not fit together, values that are not finite."""

from collections import Counter
from collections.abc import Mapping
from typing import TypedDict

from coordexp.losses.criterion import Criterion

_NEGLIGIBLE = 1e-3  # smaller losses are not compared as a ratio


class AlarmState(TypedDict):
    """What a resumed run must know of its alarms."""

    raised: int  # alarms so far
    silent: dict[str, int]  # logging steps in a row that each term has been without units or gradient


class Alarms:
    """Counts what should not happen in a healthy run, and says each in a sentence."""

    def __init__(self, criterion: Criterion, *, patience: int, factor: float) -> None:
        """Begin without alarms.

        Args:
            criterion: the terms; those of weight 0 may do what they like.
            patience: logging steps in a row that a term may be silent.
            factor: how many times one of a term's training and validation losses may be the other.
        """
        self.raised = 0  # alarms so far
        self._on = [weighted for weighted in criterion.terms if weighted.weight != 0]
        self._patience = patience
        self._factor = factor
        self._silent: Counter[str] = Counter()

    @property
    def state(self) -> AlarmState:
        """What a checkpoint keeps."""
        return {"raised": self.raised, "silent": dict(self._silent)}

    def resume(self, state: AlarmState) -> None:
        """Continue from what a checkpoint kept."""
        self.raised = state["raised"]
        self._silent = Counter(state["silent"])

    def silent_terms(self, gradients: Mapping[str, float], units: Mapping[str, float]) -> list[str]:
        """Return a sentence for each term that has been silent for ``patience`` logging steps now.

        A term is silent if it had no units or no gradient. It is named again only after it had both in between.

        Args:
            gradients: norm of each term's gradient at the head's input, by the term's name.
            units: what there was to count since the last logging step, by unit.
        """
        sentences: list[str] = []
        for weighted in self._on:
            name = weighted.term.name
            unit = weighted.term.unit
            is_heard = units[unit] and gradients[name]
            self._silent[name] = 0 if is_heard else self._silent[name] + 1
            if self._silent[name] == self._patience:
                missing = "zero gradient" if units[unit] else f"no {unit.replace('_', ' ')} to count"
                sentences.append(
                    f"the term {name} is on (weight {weighted.weight:g}) but had {missing} in the last "
                    f"{self._patience} logging steps"
                )
        self.raised += len(sentences)
        return sentences

    def not_finite(self, names: list[str]) -> list[str]:
        """Return a sentence on metrics that were not finite."""
        self.raised += 1
        return [f"not finite, and left out of the record: {', '.join(names)}"]

    def apart(self, train: Mapping[str, float], validation: Mapping[str, float]) -> list[str]:
        """Return a sentence for each term whose means of training and validation differ by more than ``factor``."""
        sentences: list[str] = []
        for weighted in self._on:
            name = weighted.term.name
            if name not in train or name not in validation:
                continue
            low, high = sorted((train[name], validation[name]))
            if high > _NEGLIGIBLE and high > self._factor * low:
                sentences.append(
                    f"the term {name} is {train[name]:.4g} in training and {validation[name]:.4g} on validation "
                    f"images, more than a factor {self._factor:g} apart: overfitting, or normalised differently"
                )
        self.raised += len(sentences)
        return sentences
