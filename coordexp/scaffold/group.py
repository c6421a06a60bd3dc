"""A new group: a neighbour's file with one difference, and a test of that difference."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from coordexp.config import ExperimentConfig, load_config
from coordexp.config.trees import Tree, merged, value_at
from coordexp.config.yaml_file import parse_value
from coordexp.errors import ConfigError
from coordexp.scaffold.new_files import Places, filled, flow, write_new
from coordexp.shipped import find_experiment, shipped_experiments
from coordexp.train.setup.weighted_terms import weighted_terms

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.\-]{0,59}")
_EXAMPLE = "objective.lambda_coord"
_EXAMPLE_VALUE = 2.0


@dataclass(frozen=True)
class NewGroup:
    """What a group is to be.

    Attributes:
        name: of the group and its file.
        beside: the group that it is compared with, and differs from in one thing.
        term: the loss term that it has more, at this weight; None: an example that doubles the geometric weights.
        weight: of the term.
        config: an experiment; the file goes to ``groups/`` beside it.
    """

    name: str
    beside: str
    term: str | None
    weight: float
    config: Path


def new_group(group: NewGroup, places: Places) -> tuple[Path, Path]:
    """Write a group and its test.

    Returns:
        The two files.

    Raises:
        ConfigError: if it is no name for a group, the neighbour or the term is unknown, they do not differ, or a file
            is there already or cannot be written.
    """
    if _NAME.fullmatch(group.name) is None or parse_value(group.name, name="name") != group.name:
        raise ConfigError(
            f"got {group.name!r} as the name of a group; expected a letter, then letters, digits, '_', '-' and '.', "
            "60 at most, and no word that YAML reads as something else, such as true or null"
        )
    experiment = find_experiment(group.config)
    neighbour = load_config(experiment, [f"ablation.groups=[{group.beside}]"])
    tree = _changed(cast("Tree", neighbour.ablation.groups[group.beside]), group)
    changed = load_config(experiment, [f"ablation.groups={json.dumps({group.name: tree})}"])
    old, new = _weights(neighbour, group.beside), _weights(changed, group.name)
    difference = {name: weight for name, weight in new.items() if old.get(name) != weight}
    if not difference:
        raise ConfigError(f"group {group.beside} has {group.term} at weight {group.weight:g} already; give another one")
    file = experiment.parent / "groups" / f"{group.name}.yaml"
    is_shipped = experiment.parent.resolve() == shipped_experiments().resolve()
    test_name = re.sub(r"\W", "_", group.name)
    test = places.test_of(test_name, "groups") if is_shipped else file.with_name(f"test_{test_name}.py")
    place = (
        f'find_experiment(Path("{experiment.name}"))'
        if is_shipped
        else f'Path(__file__).parents[1] / "{experiment.name}"'
    )
    values = {
        "ABOUT": _about(group),
        "COMMAND": _command(group, is_shipped=is_shipped),
        "FACTOR": ", ".join(neighbour.ablation.factor),
        "TREE": _shown(tree),
    }
    test_values = {
        "NAME": group.name,
        "BESIDE": group.beside,
        "EXPERIMENT": place,
        "DIFFERENCE": json.dumps(difference),
        "IMPORT": "from coordexp.shipped import find_experiment\n" if is_shipped else "",
    }
    write_new({file: filled("group", **values), test: filled("group_test", **test_values)})
    return file, test


def _changed(tree: Tree, group: NewGroup) -> Tree:
    """Return the neighbour's tree with the difference in it."""
    if group.term is not None:
        return merged(tree, {"objective": {"extra": {group.term: {"weight": group.weight}}}})
    if value_at(tree, "objective.use_geom_loss") is not True:
        raise ConfigError(
            f"group {group.beside} has no geometric loss whose weight an example could change; expected "
            "--term NAME or --term NAME=WEIGHT"
        )
    return merged(tree, {"objective": {"lambda_coord": _EXAMPLE_VALUE}})


def _weights(config: ExperimentConfig, group: str) -> dict[str, float]:
    return {found.term.name: found.weight for found in weighted_terms(config.groups[group])}


def _about(group: NewGroup) -> str:
    if group.term is None:
        return (
            f"Group {group.beside} with its geometric loss at twice the weight: an example. Write your own difference "
            f"in the\n# place of {_EXAMPLE}, and here what it is to show."
        )
    return f"Group {group.beside}, and {group.term} at weight {group.weight:g}: write here what it is to show."


def _command(group: NewGroup, *, is_shipped: bool) -> str:
    config = "" if is_shipped and group.config.stem == "tiny" else f"--config {group.config} "
    return f"coordexp ablation {config}experiment.name={group.name} 'ablation.groups=[{group.beside}, {group.name}]'"


def _shown(tree: Tree) -> str:
    """Return a group's tree as shipped groups are written: a line a section."""
    lines: list[str] = []
    for section, value in tree.items():
        if section == "custom" and isinstance(value, dict):
            lines += [f"{section}:", *(f"  {key}: {flow(below)}" for key, below in value.items())]
        else:
            lines.append(f"{section}: {flow(value)}")
    return "\n".join(lines)
