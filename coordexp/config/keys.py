"""The dotted keys of the schema, and two views of a configuration: which run it is, and what decides its numbers."""

import difflib
import functools
import json
from collections.abc import Callable, Mapping

from coordexp.config.removed import removed_key
from coordexp.config.schema import KEYS, RunConfig
from coordexp.config.schema.fields import Key, Part
from coordexp.config.trees import Tree, leaves, merged, nested
from coordexp.files import JsonValue

STEP_IMAGES = "training.global_batch_size"
"""No key: what the product of ``STEP_KEYS`` is called in records."""
STEP_KEYS = ("training.per_device_batch_size", "training.gradient_accumulation_steps", "cluster.num_workers")

LATER = (
    "ablation.tune",
    *("data.boxes_in", "data.categories.merge", "data.path", "data.split_seed", "data.val_fraction"),
    "evaluation.max_images",
)
"""Keys that came after experiments had been recorded: left out where they say what was done before."""


def identity(config: RunConfig, *, leave_out: Callable[[Key], bool] = lambda key: False) -> Tree:
    """Return what makes a run the one it is: an interrupted run goes on with this and no other.

    It is recorded in the tracking server, and a name of an experiment is bound to it. How the images of a step are
    divided over workers and microbatches is not part of it, except under DeepSpeed, whose optimizer shards only the
    same number of workers can read. ``leave_out`` names keys in which runs of one experiment may differ, where the
    identity of all of them is asked for.
    """
    kept = select(config, lambda key: key.role in ("results", "input", "name", "record") and not leave_out(key))
    if not any(leave_out(KEYS[name]) for name in STEP_KEYS):
        kept = _with_step(kept, config)
    if config.cluster.strategy == "ddp":
        return kept
    return merged(kept, {"cluster": {"num_workers": config.cluster.num_workers}})


def scientific(config: RunConfig) -> Tree:
    """Return the keys that can change a number; of inputs the bytes are hashed, wherever they lie.

    Two runs may be compared where they differ in the declared factor and rounding keys only. A key that the device
    decides is given as what it is, so that runs that differ in it never look alike.
    """
    kept = select(config, lambda key: key.role in ("results", "rounding"))
    return merged(_with_step(kept, config), {"training": {"deterministic": config.is_deterministic}})


def deciding(config: RunConfig, *parts: Part) -> str:
    """Return the keys that decide any of ``parts``, as text: where it is equal, so are those parts."""
    return json.dumps(select(config, lambda key: not key.decides.isdisjoint(parts)), sort_keys=True)


def select(config: RunConfig, keep: Callable[[Key], bool]) -> Tree:
    """Return the keys of a configuration that ``keep`` wants, nested as they were."""
    kept: Tree = {}
    sections = {above for key in KEYS for above in _above(key)}
    for name, value in leaves(config.model_dump(mode="json"), is_whole=lambda key, _: key not in sections).items():
        if keep(KEYS[name]) and not (name in LATER and value == _defaults()[name]):
            kept = merged(kept, nested(name.split("."), value))
    return kept


@functools.cache
def known_keys() -> tuple[str, ...]:
    """Return every dotted key of a configuration, sections included, in the order of the schema."""
    return tuple(dict.fromkeys(above for key in KEYS for above in (*_above(key), key)))


def key_of(dotted: str) -> Key | None:
    """Return the key that a dotted name is or is in: ``evaluation.aliases.tv`` is in ``evaluation.aliases``."""
    return next((KEYS[name] for name in (dotted, *reversed(_above(dotted))) if name in KEYS), None)


def is_rounding(key: str) -> bool:
    """Say whether a dotted key changes the last bits of a run's numbers only."""
    return (found := key_of(key)) is not None and found.role == "rounding"


def is_key(key: str) -> bool:
    """Say whether a configuration can have a dotted key; below ``objective.extra`` its loss terms decide."""
    return key in known_keys() or key.startswith("objective.extra.")


def unknown_key(key: str) -> str:
    """Return why there is no such key: it was removed, or is a slip of a known one, which is then named.

    Names beside it come first (``training.max_stpes``), then the same name elsewhere (``lambda_coord`` at the top means
    ``objective.lambda_coord``).
    """
    if (removed := removed_key(key)) is not None:
        return removed
    parent, _, name = key.rpartition(".")
    beside = {known.rpartition(".")[2]: known for known in known_keys() if known.rpartition(".")[0] == parent}
    same_name = [known for known in known_keys() if known.rpartition(".")[2] == name]
    close = [beside[found] for found in difflib.get_close_matches(name, beside, n=1)]
    guesses = close or (same_name if len(same_name) == 1 else [])
    hint = f"did you mean {guesses[0]}?" if guesses else f"{parent or 'a configuration'} has {', '.join(beside)}"
    return f"unknown key {key}; {hint}"


@functools.cache
def _defaults() -> Mapping[str, JsonValue]:
    return leaves(RunConfig().model_dump(mode="json"))


def _with_step(tree: Tree, config: RunConfig) -> Tree:
    """Add the images of a step, which decide results; the three keys whose product they are decide rounding only."""
    return merged(tree, nested(STEP_IMAGES.split("."), config.global_batch_size))


def _above(dotted: str) -> list[str]:
    """Return the sections that contain a dotted name, outermost first."""
    parts = dotted.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]
