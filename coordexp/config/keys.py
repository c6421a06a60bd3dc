"""The dotted keys of the schema, and the nearest one to a misspelt key."""

import difflib
import functools
from collections.abc import Mapping

from coordexp.config.schema import KEYS
from coordexp.config.schema.fields import Key
from coordexp.config.yaml_file import Tree
from coordexp.errors import ConfigError
from coordexp.files import JsonValue


@functools.cache
def known_keys() -> tuple[str, ...]:
    """Return every dotted key of a configuration, sections included, in the order of the schema."""
    return tuple(dict.fromkeys(above for key in KEYS for above in (*_above(key), key)))


@functools.cache
def sections() -> frozenset[str]:
    """Return the dotted keys that have keys below them."""
    return frozenset(above for key in KEYS for above in _above(key))


def key_of(dotted: str) -> Key | None:
    """Return the key that a dotted name is, or lies in: ``evaluation.aliases.tv`` lies in ``evaluation.aliases``."""
    return next((KEYS[name] for name in (dotted, *reversed(_above(dotted))) if name in KEYS), None)


def is_key(key: str) -> bool:
    """Say whether a configuration can have a dotted key; below ``objective.extra`` its loss terms decide."""
    return key in known_keys() or key.startswith("objective.extra.")


def nearest(key: str) -> str | None:
    """Return the known key that a wrong dotted key most likely means, or None.

    Names beside it come first (``training.max_stpes``), then the same name elsewhere
    (``lambda_coord`` at the top means ``objective.lambda_coord``).
    """
    parent, _, name = key.rpartition(".")
    siblings = [known for known in known_keys() if known.rpartition(".")[0] == parent]
    by_name = {known.rpartition(".")[2]: known for known in siblings}
    close = difflib.get_close_matches(name, by_name, n=1)
    if close:
        return by_name[close[0]]
    same_name = [known for known in known_keys() if known.rpartition(".")[2] == name]
    return same_name[0] if len(same_name) == 1 else None


def names_below(parent: str) -> list[str]:
    """Return the key names of one section; ``""`` is the top."""
    return [known.rpartition(".")[2] for known in known_keys() if known.rpartition(".")[0] == parent]


def leaves(tree: Mapping[str, JsonValue], *, prefix: str = "") -> dict[str, JsonValue]:
    """Flatten a nested mapping to dotted keys; an empty mapping has no leaves."""
    flat: dict[str, JsonValue] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= leaves(value, prefix=f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def merged(base: Mapping[str, JsonValue], over: Mapping[str, JsonValue]) -> Tree:
    """Return ``base`` with ``over`` laid on top: mappings merge, anything else replaces."""
    result: Tree = dict(base)
    for name, value in over.items():
        below = result.get(name)
        result[name] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def with_named_weights(tree: Mapping[str, JsonValue]) -> Tree:
    """Return a raw tree in which each ``objective.extra.NAME: 0.5`` is ``NAME: {weight: 0.5}``, also in its groups.

    Laid on top of another such tree, it changes the weight and keeps the knobs, or the other way round.
    """
    result: Tree = dict(tree)
    objective, ablation = tree.get("objective"), tree.get("ablation")
    extra = objective.get("extra") if isinstance(objective, dict) else None
    if isinstance(objective, dict) and isinstance(extra, dict):
        named: Tree = {}
        for name, value in extra.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            named[name] = {"weight": value} if is_number else value
        result["objective"] = {**objective, "extra": named}
    groups = ablation.get("groups") if isinstance(ablation, dict) else None
    if isinstance(ablation, dict) and isinstance(groups, dict):
        overlays: Tree = {}
        for name, overlay in groups.items():
            overlays[name] = with_named_weights(overlay) if isinstance(overlay, dict) else overlay
        result["ablation"] = {**ablation, "groups": overlays}
    return result


def with_value(tree: Tree, parts: list[str], value: JsonValue, *, place: str) -> Tree:
    """Return the tree with ``value`` at a path; sections on the way are made, mappings merge.

    Raises:
        ConfigError: naming ``place``, if the path goes through something that is no mapping.
    """
    below: JsonValue = tree
    for at, name in enumerate(parts):
        if not isinstance(below, dict):
            raise ConfigError(f"{place}: {parts[at - 1]} is a value ({below!r}) and has no keys below it")
        below = {} if below.get(name) is None else below[name]
    over: Tree = {parts[-1]: value}
    for name in reversed(parts[:-1]):
        over = {name: over}
    return merged(tree, with_named_weights(over))


def place_of(key: str, places: Mapping[str, str]) -> str | None:
    """Return the place of a dotted key, or of the nearest section above it that has one."""
    while key:
        if key in places:
            return places[key]
        key = key.rpartition(".")[0]
    return None


def within(key: str, prefixes: tuple[str, ...]) -> bool:
    """Say whether a dotted key is one of ``prefixes`` or lies below one."""
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)


def _above(dotted: str) -> list[str]:
    """Return the sections that a dotted name lies in, the outermost first."""
    parts = dotted.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]
