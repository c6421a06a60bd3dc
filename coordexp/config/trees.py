"""Nested mappings with dotted keys: lay one on another, set a value, flatten."""

from collections.abc import Callable, Iterable, Mapping

from coordexp.errors import ConfigError
from coordexp.files import JsonValue

Tree = dict[str, JsonValue]


def leaves(
    tree: Mapping[str, JsonValue], *, prefix: str = "", is_whole: Callable[[str, Tree], bool] | None = None
) -> dict[str, JsonValue]:
    """Flatten a nested mapping to dotted keys; an empty mapping has no leaves.

    ``is_whole`` says of a dotted key and its mapping that it stays whole, as a value; None: none of them does.
    """
    flat: dict[str, JsonValue] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and not (is_whole and is_whole(key, value)):
            flat |= leaves(value, prefix=f"{key}.", is_whole=is_whole)
        else:
            flat[key] = value
    return flat


def merged(base: Mapping[str, JsonValue], over: Mapping[str, JsonValue]) -> Tree:
    """Return ``base`` with ``over`` laid on top: mappings merge, anything else replaces."""
    result: Tree = dict(base)
    for name, value in over.items():
        below = result.get(name)
        result[name] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def with_value(tree: Tree, parts: list[str], value: JsonValue, *, place: str) -> Tree:
    """Return the tree with ``value`` at a path; its sections are made, mappings merge, and errors name ``place``."""
    below: JsonValue = tree
    for at, name in enumerate(parts):
        if not isinstance(below, dict):
            shown = "" if "tracking" in parts else f" ({below!r})"
            raise ConfigError(f"{place}: {parts[at - 1]} is a value{shown} and has no keys below it")
        below = {} if below.get(name) is None else below[name]
    return merged(tree, with_named_weights(nested(parts, value)))


def value_at(tree: JsonValue, key: str) -> JsonValue:
    """Return the value of a dotted key; None where it has none."""
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def nested(parts: Iterable[str], value: JsonValue) -> Tree:
    """Return ``{"a": {"b": value}}`` for the parts a and b."""
    *outer, last = parts
    tree: Tree = {last: value}
    for name in reversed(outer):
        tree = {name: tree}
    return tree


def with_named_weights(tree: Mapping[str, JsonValue]) -> Tree:
    """Return a raw tree in which each ``objective.extra.NAME: 0.5`` is ``NAME: {weight: 0.5}``, also in its groups.

    Laid on top of another such tree, it changes the weight and keeps the knobs, or the other way round.
    """
    result: Tree = dict(tree)
    extra, groups = value_at(result, "objective.extra"), value_at(result, "ablation.groups")
    if isinstance(extra, dict):
        numbers = {name: value for name, value in extra.items() if type(value) in (int, float)}
        weights = {name: nested(["weight"], value) for name, value in numbers.items()}
        result = merged(result, nested(["objective", "extra"], {**extra, **weights}))
    if isinstance(groups, dict):
        overlays = {name: with_named_weights(own) for name, own in groups.items() if isinstance(own, dict)}
        result = merged(result, nested(["ablation", "groups"], {**groups, **overlays}))
    return result


def place_of(key: str, places: Mapping[str, str]) -> str | None:
    """Return the place of a dotted key, or of the nearest section above it that has one."""
    while key:
        if key in places:
            return places[key]
        key = key.rpartition(".")[0]
    return None


def within(key: str, prefixes: Iterable[str]) -> bool:
    """Say whether a dotted key is one of ``prefixes`` or lies below one."""
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)
