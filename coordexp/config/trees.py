"""Nested mappings with dotted keys: lay one on another, set a value, flatten."""

from collections.abc import Callable, Iterable, Mapping

from coordexp.errors import ConfigError
from coordexp.files import JsonValue

Tree = dict[str, JsonValue]


def leaves(
    tree: Mapping[str, JsonValue], *, prefix: str = "", is_whole: Callable[[str, Tree], bool] | None = None
) -> dict[str, JsonValue]:
    """Flatten a nested mapping to dotted keys; an empty mapping has no leaves.

    Args:
        tree: the mapping.
        prefix: stands before each key.
        is_whole: says of a dotted key and its mapping whether it stays whole, as a value; None: none of them does.
    """
    flat: dict[str, JsonValue] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        is_section = isinstance(value, dict) and (is_whole is None or not is_whole(key, value))
        if isinstance(value, dict) and is_section:
            flat |= leaves(value, prefix=f"{key}.", is_whole=is_whole)
        else:
            flat[key] = value
    return flat


def merged(base: Mapping[str, JsonValue], over: Mapping[str, JsonValue]) -> Tree:
    """Return ``base`` with ``over`` laid on top: mappings merge, anything else replaces."""
    result: Tree = dict(base)
    for name, value in over.items():
        base_value = result.get(name)
        if isinstance(base_value, dict) and isinstance(value, dict):
            result[name] = merged(base_value, value)
        else:
            result[name] = value
    return result


def with_value(tree: Tree, names: list[str], value: JsonValue, *, place: str) -> Tree:
    """Return a tree with a value at a path; missing sections are made, and mappings merge.

    Args:
        tree: stays as it is.
        names: the path, from the top.
        value: goes there.
        place: what errors call the value.

    Raises:
        ConfigError: if the path leads below a value that is no mapping.
    """
    below: JsonValue = tree
    for depth, name in enumerate(names):
        if not isinstance(below, dict):
            # A value below tracking may be a secret in the wrong place.
            shown = "" if "tracking" in names else f" ({below!r})"
            raise ConfigError(f"{place}: {names[depth - 1]} is a value{shown} and has no keys below it")
        below = {} if below.get(name) is None else below[name]
    return merged(tree, with_named_weights(nested(names, value)))


def value_at(tree: JsonValue, key: str) -> JsonValue:
    """Return the value of a dotted key; None if it has none."""
    for name in key.split("."):
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def nested(names: Iterable[str], value: JsonValue) -> Tree:
    """Return ``{"a": {"b": value}}`` for the names a and b."""
    *outer, last = names
    tree: Tree = {last: value}
    for name in reversed(outer):
        tree = {name: tree}
    return tree


def with_named_weights(tree: Mapping[str, JsonValue]) -> Tree:
    """Return a raw tree in which each ``objective.extra.NAME: 0.5`` is ``NAME: {weight: 0.5}``, also in its groups.

    Both forms mean the same. As mappings, two trees merge: one changes the weight and keeps the knobs of the other.
    """
    result: Tree = dict(tree)
    extra_terms = value_at(result, "objective.extra")
    if isinstance(extra_terms, dict):
        named = {name: nested(["weight"], value) for name, value in extra_terms.items() if type(value) in (int, float)}
        result = merged(result, nested(["objective", "extra"], {**extra_terms, **named}))
    groups = value_at(result, "ablation.groups")
    if isinstance(groups, dict):
        overlays = {name: with_named_weights(overlay) for name, overlay in groups.items() if isinstance(overlay, dict)}
        result = merged(result, nested(["ablation", "groups"], {**groups, **overlays}))
    return result


def place_of(key: str, places: Mapping[str, str]) -> str | None:
    """Return where a dotted key was given, or the nearest section above it; None if none of them was.

    Args:
        key: dotted.
        places: dotted key -> where it was given.
    """
    while key:
        if key in places:
            return places[key]
        key = key.rpartition(".")[0]
    return None


def within(key: str, prefixes: Iterable[str]) -> bool:
    """Say whether a dotted key is one of ``prefixes`` or lies below one."""
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)
