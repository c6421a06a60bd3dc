"""The parts of a configuration, chosen by what its keys declare to decide."""

import json
from collections.abc import Callable, Mapping

from coordexp.config.keys import sections
from coordexp.config.schema import KEYS, ExperimentConfig
from coordexp.config.schema.fields import Key, Part
from coordexp.config.trees import Tree
from coordexp.files import JsonValue


def identity(config: ExperimentConfig) -> Tree:
    """Return what makes a run the one it is: an interrupted run goes on with this and no other.

    It is recorded in the tracking server, and a name of an experiment is bound to it.
    """
    return _kept(config, lambda key: key.role in ("results", "input", "name", "record"))


def scientific(config: ExperimentConfig) -> Tree:
    """Return the keys that can change a number; of inputs the bytes are hashed, wherever they lie."""
    return _kept(config, lambda key: key.role in ("results", "rounding"))


def deciding(config: ExperimentConfig, *parts: Part) -> str:
    """Return the keys that decide any of ``parts``, as text: where it is equal, so are those parts."""
    return json.dumps(_kept(config, lambda key: not key.decides.isdisjoint(parts)), sort_keys=True)


def without_loss(config: ExperimentConfig) -> str:
    """Return what decides a run beside its loss and its seed, as text: a check that looks at neither depends on it."""

    def keep(key: Key) -> bool:
        is_of_run = key.role in ("results", "rounding", "input") and key.name != "experiment.seed"
        return is_of_run and "loss" not in key.decides

    return json.dumps(_kept(config, keep), sort_keys=True)


def _kept(config: ExperimentConfig, keep: Callable[[Key], bool]) -> Tree:
    return _select(config.model_dump(mode="json"), keep, prefix="")


def _select(tree: Mapping[str, JsonValue], keep: Callable[[Key], bool], *, prefix: str) -> Tree:
    kept: Tree = {}
    for name, value in tree.items():
        dotted = f"{prefix}{name}"
        if isinstance(value, dict) and dotted in sections():
            inner = _select(value, keep, prefix=f"{dotted}.")
            if inner:
                kept[name] = inner
        elif keep(KEYS[dotted]):
            kept[name] = value
    return kept
