"""The experiment directory: one name, one configuration; more groups and seeds may join."""

import itertools
import json
import shutil
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from coordexp.config.keys import STEP_IMAGES, identity
from coordexp.config.schema import ExperimentConfig, RunConfig
from coordexp.config.trees import leaves, value_at
from coordexp.errors import ConfigError, ResourceError
from coordexp.files import JsonValue, nearest_existing, parse_model, write_json
from coordexp.metrics import BoxKind
from coordexp.runs.folder import ExperimentFolder

_STRATEGY, _WORKERS = "cluster.strategy", "cluster.num_workers"


@dataclass(frozen=True)
class ExperimentRecord:
    """What ``experiment.json`` holds. Its groups and seeds are all that any command has run."""

    instance: str  # changes with ``--fresh``, so that the tracking server's old runs are not continued
    config: dict[str, JsonValue]  # shared by all groups, without what no result depends on
    groups: dict[str, JsonValue]  # each with the keys it changes
    seeds: list[int]
    reading: dict[str, BoxKind] = field(default_factory=dict[str, BoxKind])  # of each group, as last run


def open_experiment(config: ExperimentConfig, *, fresh: bool = False) -> ExperimentRecord:
    """Create the experiment's directory, or go on in it; ``fresh`` moves an existing one aside and starts over.

    A name is bound to its configuration once a run has begun. Before that, a configuration that was refused may be
    mended under the same name.

    Raises:
        ConfigError: if the name is bound to another configuration.
    """
    directory = ExperimentFolder.of(config).path
    if fresh and directory.exists():
        directory.rename(_free_name(directory))
    current = _record_of(config)
    recorded = check_experiment(config)
    if recorded is not None:
        current = replace(
            recorded,
            groups=recorded.groups | current.groups,
            seeds=sorted({*recorded.seeds, *current.seeds}),
            reading=recorded.reading | current.reading,
        )
    write_json(ExperimentFolder(directory).record, vars(current), indent=2)
    return current


def check_experiment(config: ExperimentConfig) -> ExperimentRecord | None:
    """Return the record that a run of ``config`` would continue, or None where it would start one.

    Raises:
        ConfigError: if the name exists with another configuration, and a run of it has begun.
    """
    folder = ExperimentFolder.of(config)
    recorded = read_record(folder.path)
    if recorded is None:
        return None
    current = _record_of(config)
    common_groups = recorded.groups.keys() & current.groups.keys()
    old_values = _keys_of(recorded, common_groups)
    new_values = _keys_of(current, common_groups)
    all_keys = sorted(old_values.keys() | new_values.keys())
    changed_keys = [key for key in all_keys if old_values.get(key) != new_values.get(key)]
    if not changed_keys:
        return recorded
    if not folder.begun_runs():
        return None

    changes: list[str] = []
    for key in changed_keys:
        # Only under DeepSpeed are workers part of an identity. Where the strategy has changed, they change with it.
        if key != _WORKERS or _STRATEGY not in changed_keys:
            changes.append(f"{key}: {_value_text(old_values, key)} -> {_value_text(new_values, key)}")
    way_on = "choose another experiment.name, or --fresh"
    continuing = _continuing_settings(config, recorded, changed_keys)
    if continuing is not None:
        way_on = f"{continuing}; else {way_on}"
    raise ConfigError(
        f"experiment {folder.name} exists in {folder.path.parent} with another configuration ({', '.join(changes)}); "
        f"{way_on}"
    )


def read_record(directory: Path) -> ExperimentRecord | None:
    """Return the record in an experiment's directory, None where there is none; a ConfigError if it is damaged."""
    path = ExperimentFolder(directory).record
    if not path.exists():
        return None
    try:
        return parse_model(ExperimentRecord, path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a record of an experiment ({error}); --fresh moves it aside") from error


def check_disk(directory: Path, *, needed_bytes: int) -> None:
    """Raise a ResourceError if the disk of a directory, which need not exist yet, has less room than is needed."""
    free = shutil.disk_usage(nearest_existing(directory)).free
    if free < needed_bytes:
        raise ResourceError(
            f"{directory}: {free / 2**30:.2f} GiB of disk are free, about {needed_bytes / 2**30:.2f} GiB are needed"
        )


def directory_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _free_name(directory: Path) -> Path:
    """Return the first of ``NAME.old-1``, ``NAME.old-2``, ... that does not exist."""
    names = (directory.with_name(f"{directory.name}.old-{number}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def _record_of(config: ExperimentConfig) -> ExperimentRecord:
    shared = _without_spaces_of_groups(_shared(config))
    shared_values = leaves(shared)
    groups: dict[str, JsonValue] = {}
    reading: dict[str, BoxKind] = {}
    for name in config.groups:
        run = config.run(name, 0)
        group_values = leaves(_shared(run))
        groups[name] = {key: value for key, value in group_values.items() if shared_values.get(key) != value}
        reading[name] = run.reading
    instance = uuid.uuid4().hex[:12]
    return ExperimentRecord(instance, shared, groups, list(config.ablation.seeds), reading)


def _shared(config: RunConfig) -> dict[str, JsonValue]:
    return {section: values for section, values in identity(config).items() if section != "experiment"}


def _without_spaces_of_groups(shared: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Leave out what single groups are tuned in, which stands with each group: another group may join."""
    ablation = shared.get("ablation")
    tune = ablation.get("tune") if isinstance(ablation, dict) else None
    if not isinstance(tune, dict):
        return shared
    of_all = {name: value for name, value in tune.items() if name != "groups"}
    return {**shared, "ablation": {"tune": of_all}}


def _keys_of(record: ExperimentRecord, groups: Iterable[str]) -> dict[str, JsonValue]:
    return leaves(record.config) | leaves({name: record.groups[name] for name in groups}, prefix="ablation.groups.")


def _value_text(values: Mapping[str, JsonValue], key: str) -> str:
    return json.dumps(values[key]) if key in values else "(absent)"


def _continuing_settings(config: RunConfig, recorded: ExperimentRecord, changed_keys: Collection[str]) -> str | None:
    """Return which settings continue runs that began with other workers or another strategy, and why they are needed.

    Returns:
        A sentence without its full stop. None if other keys have changed too, or if no accumulation keeps the number
        of images in a step.
    """
    if not {STEP_IMAGES, _STRATEGY, _WORKERS}.issuperset(changed_keys):
        return None
    strategy = value_at(recorded.config, _STRATEGY)
    step_images = value_at(recorded.config, STEP_IMAGES)
    workers = value_at(recorded.config, _WORKERS)
    settings: list[str] = []
    if _STRATEGY in changed_keys:
        settings.append(f"{_STRATEGY}={strategy}")
    if not isinstance(workers, int):  # under DDP any number of workers continues
        workers = config.cluster.num_workers
    elif workers != config.cluster.num_workers:
        settings.append(f"{_WORKERS}={workers}")

    images_at_once = config.training.per_device_batch_size * workers
    if not isinstance(step_images, int) or step_images % images_at_once != 0:
        return None
    accumulation_steps = step_images // images_at_once
    if accumulation_steps != config.training.gradient_accumulation_steps:
        settings.append(f"training.gradient_accumulation_steps={accumulation_steps}")

    effect = "continues"
    if STEP_IMAGES in changed_keys:
        effect = f"keeps a step of {step_images} images and continues"
    sentence = f"{' '.join(settings)} {effect}"
    if _STRATEGY in changed_keys:
        own_strategy = config.cluster.strategy
        return f"{strategy} and {own_strategy} keep the optimizer's state in different files, so {sentence}"
    if _WORKERS in changed_keys:
        return f"{strategy} keeps the optimizer's state in one part for each worker, so {sentence}"
    return sentence
