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
"""Not a key of the schema: in records it is the name of the product of :data:`STEP_KEYS`."""

STEP_KEYS = ("training.per_device_batch_size", "training.gradient_accumulation_steps", "cluster.num_workers")

LATER = (
    "ablation.tune",
    *("data.boxes_in", "data.categories.merge", "data.path", "data.split_seed", "data.val_fraction"),
    "evaluation.max_images",
)
"""Keys that came after experiments had been recorded. At their default they say what was done before, and are left out
of records: otherwise no recorded experiment could go on.
"""


def identity(config: RunConfig, *, leave_out: Callable[[Key], bool] = lambda key: False) -> Tree:
    """Return what makes a run the one it is: an interrupted run goes on with this and no other.

    It is recorded in the tracking server, and a name of an experiment is bound to it. How the images of a step are
    divided over workers and microbatches is not part of it. Under DeepSpeed the number of workers is: only as many
    workers can read the shards of its optimizer.

    Args:
        config: of the run.
        leave_out: says in which keys runs of one experiment may differ, if the identity of all of them is wanted.
    """
    identifying = select(config, lambda key: key.role in ("results", "input", "name", "record") and not leave_out(key))
    if not any(leave_out(KEYS[name]) for name in STEP_KEYS):
        identifying = _with_step(identifying, config)
    if config.cluster.strategy == "ddp":
        return identifying
    return merged(identifying, {"cluster": {"num_workers": config.cluster.num_workers}})


def scientific(config: RunConfig) -> Tree:
    """Return the keys that can change a number; paths are left out, since the bytes of inputs are hashed.

    Two runs may be compared if they differ in the declared factor and in rounding keys only. Whether a run is
    deterministic may be left to its device; the value it has is given, so that runs that differ in it never look alike.
    """
    deciding_numbers = select(config, lambda key: key.role in ("results", "rounding"))
    is_deterministic: Tree = {"training": {"deterministic": config.is_deterministic}}
    return merged(_with_step(deciding_numbers, config), is_deterministic)


def deciding(config: RunConfig, *parts: Part) -> str:
    """Return the keys that decide any of ``parts``, as text: if it is equal for two runs, so are those parts."""
    return json.dumps(select(config, lambda key: not key.decides.isdisjoint(parts)), sort_keys=True)


def select(config: RunConfig, is_selected: Callable[[Key], bool]) -> Tree:
    """Return some keys of a configuration, nested as they were; those of :data:`LATER` only if they are set."""
    sections = {section for key in KEYS for section in _sections_above(key)}
    values = leaves(config.model_dump(mode="json"), is_whole=lambda key, _: key not in sections)
    selected: Tree = {}
    for name, value in values.items():
        is_later_default = name in LATER and value == _defaults()[name]
        if is_selected(KEYS[name]) and not is_later_default:
            selected = merged(selected, nested(name.split("."), value))
    return selected


@functools.cache
def known_keys() -> tuple[str, ...]:
    """Return every dotted key of a configuration, sections included, in the order of the schema."""
    names = dict[str, None]()  # A dictionary, because it keeps its order.
    for key in KEYS:
        names |= dict.fromkeys([*_sections_above(key), key])
    return tuple(names)


def key_of(dotted: str) -> Key | None:
    """Return the key that a dotted name is or is in: ``evaluation.aliases.tv`` is in ``evaluation.aliases``."""
    for name in (dotted, *reversed(_sections_above(dotted))):
        if name in KEYS:
            return KEYS[name]
    return None


def is_rounding(dotted: str) -> bool:
    """Say whether a dotted key changes the last bits of a run's numbers only."""
    key = key_of(dotted)
    return key is not None and key.role == "rounding"


def is_key(key: str) -> bool:
    """Say whether a configuration can have a dotted key; below ``objective.extra`` its loss terms decide."""
    return key in known_keys() or key.startswith("objective.extra.")


def unknown_key(key: str) -> str:
    """Return the sentence on a key that does not exist, with the way on: it was removed, or another key was meant.

    A name like it in the same section comes first (``training.max_stpes``), then the same name elsewhere
    (``lambda_coord`` at the top means ``objective.lambda_coord``).
    """
    removed = removed_key(key)
    if removed is not None:
        return removed
    section, _, name = key.rpartition(".")
    key_in_section: dict[str, str] = {}
    keys_of_name: list[str] = []
    for candidate in known_keys():
        section_of_candidate, _, name_of_candidate = candidate.rpartition(".")
        if section_of_candidate == section:
            key_in_section[name_of_candidate] = candidate
        if name_of_candidate == name:
            keys_of_name.append(candidate)

    close_names = difflib.get_close_matches(name, key_in_section, n=1)
    if close_names:
        hint = f"did you mean {key_in_section[close_names[0]]}?"
    elif len(keys_of_name) == 1:
        hint = f"did you mean {keys_of_name[0]}?"
    else:
        hint = f"{section or 'a configuration'} has {', '.join(key_in_section)}"
    return f"unknown key {key}; {hint}"


@functools.cache
def _defaults() -> Mapping[str, JsonValue]:
    return leaves(RunConfig().model_dump(mode="json"))


def _with_step(tree: Tree, config: RunConfig) -> Tree:
    """Add the number of images of a step, which decides results; the three keys it is made of decide rounding only."""
    return merged(tree, nested(STEP_IMAGES.split("."), config.global_batch_size))


def _sections_above(dotted: str) -> list[str]:
    """Return the sections that contain a dotted name, outermost first."""
    names = dotted.split(".")
    return [".".join(names[:end]) for end in range(1, len(names))]
