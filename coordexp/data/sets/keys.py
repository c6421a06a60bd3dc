"""The configuration keys that decide what a set holds, and the name of its folder."""

import json
from collections.abc import Callable

from coordexp.config.schema import KEYS
from coordexp.config.schema.data import Data
from coordexp.config.schema.fields import Key
from coordexp.config.trees import Tree, leaves
from coordexp.files import JsonValue, sha256_of_text

# A set holds all pictures: these keys choose some of them afterwards.
_CHOOSE_FROM_A_SET = ("data.max_train_images", "data.train_subset_seed")
# Kept beside the pictures, and free to change while runs go on.
_NOT_IN_THE_NAME = ("data.unit_by", "data.tags")


def set_keys(data: Data) -> dict[str, JsonValue]:
    """Return the keys that decide what is in the set and are not the default; paths are no part of it."""
    return _reading_keys(data, lambda key: key.role != "input")


def set_name(data: Data) -> str:
    """Return the name of a set's folder: groups that read other data, or read them otherwise, have sets of their own.

    ``data.unit_by`` and ``data.tags`` have no part in the name: a set with them replaces the set without them.
    """
    keys = _reading_keys(data, lambda key: key.name not in _NOT_IN_THE_NAME)
    return f"set-{sha256_of_text(json.dumps(keys, sort_keys=True))[:8]}"


def _reading_keys(data: Data, is_wanted: Callable[[Key], bool]) -> dict[str, JsonValue]:
    """Return the wanted ones of the keys that change reading, by dotted name.

    Defaults are left out, so that a key of a later version leaves older sets as they are.
    """
    values = leaves({"data": data.model_dump(mode="json")}, is_whole=_is_value)
    defaults = leaves({"data": Data().model_dump(mode="json")}, is_whole=_is_value)
    keys: dict[str, JsonValue] = {}
    for name, value in values.items():
        decides_data = "data" in KEYS[name].decides and name not in _CHOOSE_FROM_A_SET
        if decides_data and is_wanted(KEYS[name]) and value != defaults.get(name):
            keys[name] = value
    return keys


def _is_value(key: str, tree: Tree) -> bool:
    return key in KEYS
