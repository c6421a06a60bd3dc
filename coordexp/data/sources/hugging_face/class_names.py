"""Names of the classes: from the schema of a parquet file, or from a card."""

import json
import re
from functools import lru_cache
from pathlib import Path

from coordexp.config.yaml_file import parse_foreign
from coordexp.data.sources.hugging_face.parquet import opened_parquet
from coordexp.data.sources.text_file import read_text
from coordexp.errors import DataError

_CARD = "README.md"


def names_in_schema(shard: Path) -> list[str]:
    """Return the names of the classes as the ``datasets`` library writes them into a parquet file; else none."""
    metadata: dict[bytes, bytes] = opened_parquet(shard).schema_arrow.metadata or {}
    try:
        features: object = json.loads(metadata.get(b"huggingface", b"null"))
    except ValueError:
        return []
    return _names_below(features)


@lru_cache(maxsize=16)
def class_names(folder: Path) -> list[str]:
    """Return the names of the classes of a card beside a data set, or one or two folders up; none without one."""
    for place in (folder, *folder.parents[:2]):
        card = place / _CARD
        if card.is_file():
            match = re.match(r"---\n(.*?)\n---", read_text(card), re.DOTALL)
            try:
                names = _names_below(parse_foreign(match[1])) if match is not None else []
            except DataError:
                names = []
            if names:
                return names
    return []


def _names_below(value: object) -> list[str]:
    """Return the first list of class names below a description of features, of the objects if it has such."""
    objects = _feature_of_objects(value)
    return _first_names(value if objects is None else objects)


def _feature_of_objects(value: object) -> object:
    """Return the description of the column ``objects``, of a schema or of a card; None without one."""
    if isinstance(value, dict):
        if "objects" in value:
            return value["objects"]
        if value.get("name") == "objects":
            return value
        value = list(value.values())
    if not isinstance(value, list):
        return None
    return next((found for found in map(_feature_of_objects, value) if found is not None), None)


def _number_of(key: object) -> int:
    return int(str(key)) if str(key).isdigit() else 0


def _first_names(value: object) -> list[str]:
    if isinstance(value, list):
        return next((names for names in map(_first_names, value) if names), [])
    if not isinstance(value, dict):
        return []
    names = value.get("names")
    if isinstance(names, dict):
        names = [names[key] for key in sorted(names, key=_number_of)]
    if isinstance(names, list) and names:
        return [str(name) for name in names]
    return _first_names(list(value.values()))
