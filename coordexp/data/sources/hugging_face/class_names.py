"""Names of the classes: from the schema of a parquet file, or from a card (``README.md``) beside a data set."""

import json
import re
from functools import lru_cache
from pathlib import Path

from coordexp.config.yaml_file import parse_foreign
from coordexp.data.sources.hugging_face.parquet import opened_parquet
from coordexp.data.sources.text_file import read_text
from coordexp.errors import DataError

_CARD = "README.md"
_FRONT_MATTER = re.compile(r"---\n(.*?)\n---", re.DOTALL)


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
            names = _names_in_card(card)
            if names:
                return names
    return []


def _names_in_card(card: Path) -> list[str]:
    front_matter = _FRONT_MATTER.match(read_text(card))
    if front_matter is None:
        return []
    try:
        return _names_below(parse_foreign(front_matter[1]))
    except DataError:
        return []  # a README of another purpose


def _names_below(description: object) -> list[str]:
    """Return the first list of class names below a description of features, of the objects if it has such."""
    objects = _feature_of_objects(description)
    return _first_names(description if objects is None else objects)


def _feature_of_objects(description: object) -> object:
    """Return the description of the column ``objects``, of a schema or of a card; None without one."""
    if isinstance(description, dict):
        if "objects" in description:
            return description["objects"]
        if description.get("name") == "objects":
            return description
        description = list(description.values())
    if not isinstance(description, list):
        return None
    for item in description:
        feature = _feature_of_objects(item)
        if feature is not None:
            return feature
    return None


def _first_names(description: object) -> list[str]:
    """Return the first ``names`` below a description, as a list or as a table by number."""
    if isinstance(description, list):
        for item in description:
            names = _first_names(item)
            if names:
                return names
        return []
    if not isinstance(description, dict):
        return []
    names = description.get("names")
    if isinstance(names, dict):
        names = [names[key] for key in sorted(names, key=_number_of)]
    if isinstance(names, list) and names:
        return [str(name) for name in names]
    return _first_names(list(description.values()))


def _number_of(key: object) -> int:
    return int(str(key)) if str(key).isdigit() else 0
