"""Load an experiment: YAML, one level of ``extends``, ``KEY=VALUE``, one validation."""

from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import ValidationError

from coordexp.config.draft import GROUPS, Draft, completed
from coordexp.config.explain import explain, validated
from coordexp.config.groups import absolute_groups, check_groups, resolve_groups
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ConfigError


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Load and validate a whole experiment.

    The file may extend one other file (``extends: base.yaml``, relative to itself); then each
    ``KEY=VALUE`` is applied in order. ``ablation.groups`` may be a list of names, looked up as
    ``groups/NAME.yaml`` beside either file, or a mapping of overlays; it is a mapping afterwards.
    Relative paths become absolute against the current directory, and ``tracking.uri`` is filled
    from ``MLFLOW_TRACKING_URI`` or with a SQLite file in ``experiment.runs_dir``: this is the only
    place that reads the environment.

    Args:
        path: a YAML file.
        overrides: such as ``training.max_steps=20``, ``ablation.seeds=[0]``; the value is YAML.

    Raises:
        ConfigError: says file and line, the dotted key, what was given and what was expected.
    """
    draft = Draft.read(Path(path))
    resolve_groups(draft)
    overridden: list[str] = []
    for text in overrides:
        overridden.append(draft.override(text))
        resolve_groups(draft)
    draft.tree = absolute_groups(completed(draft.tree))
    config = validated(draft.tree, where=draft.where)
    check_groups(config, draft, overridden=[key for key in overridden if not key.startswith(GROUPS)])
    return config


def to_yaml(config: ExperimentConfig) -> str:
    """Write a configuration as YAML that :func:`load_config` reads back to an equal one."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def to_json(config: ExperimentConfig) -> str:
    """Write a configuration as JSON, the form in which it travels to workers."""
    return config.model_dump_json()


def from_json(text: str) -> ExperimentConfig:
    """Read what :func:`to_json` wrote, and validate it again.

    Raises:
        ConfigError: if the text is no JSON or no valid configuration.
    """
    try:
        return ExperimentConfig.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(explain(error, where=lambda _: "configuration in JSON")) from None
