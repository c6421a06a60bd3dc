"""A group file with searched values, to copy to ``groups/`` beside an experiment."""

from collections.abc import Mapping, Sequence

from coordexp.config.schema.search import Number
from coordexp.config.trees import Tree, with_value
from coordexp.config.yaml_file import written_yaml


def group_file(overlay: Tree, point: Mapping[str, Number], *, comment: Sequence[str]) -> str:
    """Return the text of a group file.

    Args:
        overlay: what the searched group changes.
        point: the values that were chosen for it, by dotted key.
        comment: lines above it, which say where the values come from.
    """
    tree = overlay
    for key, value in point.items():
        tree = with_value(tree, key.split("."), value, place=key)
    lines = "".join(f"# {line}\n" for line in comment)
    return lines + written_yaml(tree, flow=None, width=120)
