"""The configuration keys that decide what a set holds, and the name of its folder."""

import json
from collections.abc import Callable

from coordexp.config.schema import KEYS
from coordexp.config.schema.data import Data
from coordexp.config.schema.fields import Key
from coordexp.config.trees import Tree, leaves
from coordexp.files import JsonValue, sha256_of_text

# Chosen from a set, which holds all pictures; or kept beside them, and free to change while runs go on.
_NOT_OF_THE_SET = ("data.max_train_images", "data.train_subset_seed")
_NOT_IN_THE_NAME = ("data.unit_by", "data.tags")


def set_keys(data: Data) -> dict[str, JsonValue]:
    """Return the keys that decide what is in the set, where they are not the default; paths are no part of it."""
    return _keys_that(data, lambda key: key.role != "input")


def set_name(data: Data) -> str:
    """Return the name of a set's folder: groups that read other data, or otherwise, have sets of their own.

    ``data.unit_by`` and ``data.tags`` have no part in it: a set with them takes the place of one without.
    """
    keys = _keys_that(data, lambda key: key.name not in _NOT_IN_THE_NAME)
    return f"set-{sha256_of_text(json.dumps(keys, sort_keys=True))[:8]}"


def _keys_that(data: Data, keep: Callable[[Key], bool]) -> dict[str, JsonValue]:
    """Return keys that change reading, by their dotted names; a later key leaves sets of its default as they are."""
    values = leaves({"data": data.model_dump(mode="json")}, is_whole=_is_value)
    defaults = leaves({"data": Data().model_dump(mode="json")}, is_whole=_is_value)
    return {
        name: value
        for name, value in values.items()
        if "data" in KEYS[name].decides
        and name not in _NOT_OF_THE_SET
        and keep(KEYS[name])
        and value != defaults.get(name)
    }


def _is_value(key: str, tree: Tree) -> bool:
    return key in KEYS
