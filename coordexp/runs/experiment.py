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
    """What ``experiment.json`` holds: of groups and seeds, all that were run so far."""

    instance: str  # changes with ``--fresh``, so that the tracking server's old runs are not continued
    config: dict[str, JsonValue]  # shared by all groups, without what no result depends on
    groups: dict[str, JsonValue]  # each with the keys it changes
    seeds: list[int]
    reading: dict[str, BoxKind] = field(default_factory=dict[str, BoxKind])  # by each group's last command


def open_experiment(config: ExperimentConfig, *, fresh: bool = False) -> ExperimentRecord:
    """Create the experiment's directory, or go on in it; ``fresh`` moves an existing one aside and starts over.

    A name is bound to its configuration once a run has begun: what failed before may be fixed under the same name.
    """
    directory = ExperimentFolder.of(config).path
    if fresh and directory.exists():
        names = (directory.with_name(f"{directory.name}.old-{number}") for number in itertools.count(1))
        directory.rename(next(name for name in names if not name.exists()))
    current, recorded = _record_of(config), check_experiment(config)
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
    both = recorded.groups.keys() & current.groups.keys()
    old, new = _keys_of(recorded, both), _keys_of(current, both)
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if not changed:
        return recorded
    if not folder.begun_runs():
        return None

    def shown(values: Mapping[str, JsonValue], key: str) -> str:
        return json.dumps(values[key]) if key in values else "(absent)"

    # Only under DeepSpeed are workers part of a run: beside another strategy they are no reason of their own.
    reasons = [key for key in changed if not (key == _WORKERS and _STRATEGY in changed)]
    changes = ", ".join(f"{key}: {shown(old, key)} -> {shown(new, key)}" for key in reasons)
    raise ConfigError(
        f"experiment {folder.name} exists in {folder.path.parent} with another configuration ({changes}); "
        f"{_way_back(config, recorded, changed)}choose another experiment.name, or --fresh"
    )


def read_record(directory: Path) -> ExperimentRecord | None:
    path = ExperimentFolder(directory).record
    if not path.exists():
        return None
    try:
        return parse_model(ExperimentRecord, path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a record of an experiment ({error}); --fresh moves it aside") from error


def check_disk(directory: Path, *, needed_bytes: int) -> None:
    free = shutil.disk_usage(nearest_existing(directory)).free
    if free < needed_bytes:
        raise ResourceError(
            f"{directory}: {free / 2**30:.2f} GiB of disk are free, about {needed_bytes / 2**30:.2f} GiB are needed"
        )


def directory_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _record_of(config: ExperimentConfig) -> ExperimentRecord:
    shared = _without_spaces_of_groups(_shared(config))
    base = leaves(shared)
    groups: dict[str, JsonValue] = {}
    reading: dict[str, BoxKind] = {}
    for name in config.groups:
        run = config.run(name, 0)
        reading[name], own = run.reading, leaves(_shared(run))
        groups[name] = {key: value for key, value in own.items() if base.get(key) != value}
    return ExperimentRecord(uuid.uuid4().hex[:12], shared, groups, list(config.ablation.seeds), reading)


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


def _way_back(config: RunConfig, recorded: ExperimentRecord, changed: Collection[str]) -> str:
    """Return why a run cannot go on with other workers or another strategy, and what continues it.

    "" where other keys have changed too, or where no accumulation keeps the images of a step.
    """
    if not {STEP_IMAGES, _STRATEGY, _WORKERS}.issuperset(changed):
        return ""
    strategy, images = value_at(recorded.config, _STRATEGY), value_at(recorded.config, STEP_IMAGES)
    workers = value_at(recorded.config, _WORKERS)
    reason, settings = "", list[str]()
    if _STRATEGY in changed:
        reason = f"{strategy} and {config.cluster.strategy} keep the optimizer's state in different files, so "
        settings.append(f"{_STRATEGY}={strategy}")
    elif _WORKERS in changed:
        reason = f"{strategy} keeps the optimizer's state in one part for each worker, so "
    if not isinstance(workers, int):  # under DDP any number of them continues
        workers = config.cluster.num_workers
    elif workers != config.cluster.num_workers:
        settings.append(f"{_WORKERS}={workers}")

    at_once = config.training.per_device_batch_size * workers
    if not isinstance(images, int) or images % at_once:
        return ""
    steps = images // at_once
    if steps != config.training.gradient_accumulation_steps:
        settings.append(f"training.gradient_accumulation_steps={steps}")
    step = f"keeps a step of {images} images and continues" if STEP_IMAGES in changed else "continues"
    return f"{reason}{' '.join(settings)} {step}; else "
