"""What is made and measured once for all runs of an experiment."""

import json
from collections.abc import Sequence

from coordexp.config.identity.parts import deciding
from coordexp.config.schema import ExperimentConfig
from coordexp.data.sources.source import source_of
from coordexp.detection.ceiling import codec_ceiling
from coordexp.errors import ConfigError
from coordexp.files import sha256_of_file, write_json
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.plan import RunPlan
from coordexp.train.setup.objective import check_objective
from coordexp.train.setup.prepare import PreparedExperiment, prepare_experiment
from coordexp.train.setup.strategy import check_strategy


def check_plans(plans: Sequence[RunPlan]) -> None:
    """Check what can be said of the runs together before anything is read.

    Raises:
        ConfigError: if groups differ in the data set that is generated for all, or a loss cannot be computed.
    """
    if len({plan.config.data.shapes.model_dump_json() for plan in plans}) > 1:
        raise ConfigError(
            "groups differ in data.shapes, but an experiment holds one generated data set; use two experiments"
        )
    for plan in plans:
        check_objective(plan.config)


def prepare_all(plans: Sequence[RunPlan]) -> dict[str, PreparedExperiment]:
    """Prepare the data and base of every run, once for each distinct pair; return them by run name.

    Raises:
        CoordExpError: whatever would stop a run later and can be known now.
    """
    check_plans(plans)
    for plan in plans:
        check_strategy(plan.config)
    made: dict[str, PreparedExperiment] = {}
    prepared: dict[str, PreparedExperiment] = {}
    for plan in plans:
        parts = deciding(plan.config, "data", "base")
        if parts not in made:
            made[parts] = prepare_experiment(plan.config)
        prepared[plan.name] = made[parts]
    return prepared


def shared_metrics(config: ExperimentConfig) -> dict[str, float | None]:
    """Return the codec ceiling of the validation split; computed once, kept beside the data it belongs to."""
    annotations = source_of(config.data, "val", data_dir=ExperimentFolder.of(config).data).ground_truth()
    path = ExperimentFolder.of(config).codec_ceiling
    stamp = sha256_of_file(annotations)
    kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if kept.get("annotations") == stamp:
        return {"codec_ceiling/AP": kept["AP"]}
    ceiling = codec_ceiling(annotations)
    write_json(path, {"annotations": stamp, "AP": ceiling})
    return {"codec_ceiling/AP": ceiling}
