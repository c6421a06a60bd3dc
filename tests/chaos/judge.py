"""Whether a command that something broke under has ended well: equal to an undisturbed one, or with a sentence."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.chaos.world import Point

_OF_THE_CLOCK = re.compile(r"^throughput/|seconds|per_second")
_TRACEBACK = "Traceback (most recent call last)"
# Each says what a person must do, or what becomes of it by itself.
_SENTENCES = re.compile(
    r"^error: (?!.*Error\b)|the same command (goes on|sends|does|tries|starts)|^interrupted$|; try again: |"
    r"; (export|unset|start|mend|make room|free|choose|give) "
)


@dataclass(frozen=True)
class Result:
    """What an ablation has come to.

    Attributes:
        weights: final ones, by run and name.
        points: that MLflow has, but for those of the clock.
        states: of the runs in MLflow.
    """

    weights: dict[str, dict[str, torch.Tensor]]
    points: Counter[Point]
    states: dict[str, str]


def final_weights(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Return the final weights of every run of an experiment that has some."""
    found = [*folder.glob("*/merged/model.safetensors"), *folder.glob("*/final.safetensors")]
    return {path.relative_to(folder).parts[0]: load_file(path) for path in sorted(found)}


def of_training(points: Counter[Point], experiment: str) -> Counter[Point]:
    """Return the points that say nothing of the clock; the experiment's own run is called the same in all."""
    return Counter(
        {
            Point("" if point.run == experiment else point.run, point.key, point.step, point.value): count
            for point, count in points.items()
            if not _OF_THE_CLOCK.search(point.key)
        }
    )


def differences(expected: Result, found: Result) -> list[str]:
    """Return a sentence for each kind of difference; nothing where two results are equal."""
    said: list[str] = []
    for run in sorted(expected.weights.keys() | found.weights.keys()):
        if not _equal(expected.weights.get(run), found.weights.get(run)):
            said.append(f"weights of {run} differ")
    missing, new = expected.points - found.points, found.points - expected.points
    said += [f"{sum(points.values())} points {what}, such as {min(points, key=str)}" for what, points in (
        ("missing", missing), ("doubled or new", new)
    ) if points]  # fmt: skip
    states = set(found.states.values())
    if states != {"FINISHED"}:
        said.append(f"runs in MLflow are {', '.join(sorted(states)) or 'not there'}")
    return said


def problem_of_words(text: str) -> str | None:
    """Return what is wrong with the last words of a command that did not end with 0."""
    if _TRACEBACK in text:
        return "it shows a traceback"
    last = last_words(text)
    return None if _SENTENCES.search(last) else f"its last words are no sentence of ours: {last[:200]!r}"


def last_words(text: str) -> str:
    """Return the last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _equal(expected: dict[str, torch.Tensor] | None, found: dict[str, torch.Tensor] | None) -> bool:
    if expected is None or found is None or expected.keys() != found.keys():
        return False
    return all(torch.equal(expected[name], found[name]) for name in expected)
