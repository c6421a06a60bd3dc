"""How workers share a run: as replicas (DDP) or in DeepSpeed's ZeRO stages, and how many of them.

Neither transformers nor peft is imported: every run's driver imports this, which trains nothing.
"""

from pathlib import Path
from typing import cast

from coordexp.config.schema import Cluster, ExperimentConfig
from coordexp.errors import ConfigError, TrainingError
from coordexp.files import JsonValue, parse_json
from coordexp.runs import ranks
from coordexp.shipped import find_experiment

ZERO_STAGES = {"ddp": 0, "zero2": 2, "zero3": 3}


def check_strategy(config: ExperimentConfig) -> None:
    """Refuse, before anything starts, what the strategy could not do exactly.

    Raises:
        ConfigError: with what was asked and why it cannot be.
    """
    cluster, training = config.cluster, config.training
    if cluster.strategy != "ddp":
        if cluster.num_workers == 1:
            raise ConfigError(
                f"cluster.strategy: {cluster.strategy} has nothing to share with cluster.num_workers: 1; use ddp"
            )
        if cluster.strategy == "zero3" and training.tuning == "full":
            raise ConfigError(
                "cluster.strategy: zero3 with training.tuning: full is not shown to equal ddp (the loss trains the "
                "output table outside the forward that ZeRO-3 watches); use zero2, or training.tuning: lora or dora"
            )
        if training.log_term_gradients is not None:
            raise ConfigError(
                f"training.log_term_gradients with cluster.strategy: {cluster.strategy}: it goes backwards for each "
                "term, which DeepSpeed would take for the step itself; use ddp, or leave it out"
            )
        deepspeed_settings(config)


def samples_at_once(config: ExperimentConfig, *, num_workers: int) -> int:
    """Return how many samples an epoch must be a multiple of."""
    return 1 if num_workers == 1 else config.training.per_device_batch_size * num_workers


def strategy_line(config: ExperimentConfig, *, num_workers: int) -> str:
    """Return e.g. ``zero2 on 2 workers, 16 images a step: 2 x 4 x 2 accumulated``."""
    cluster, size = config.cluster, config.training.per_device_batch_size
    accumulated = config.training.gradient_accumulation_steps
    name = cluster.strategy if num_workers > 1 else "one process"
    return (
        f"{name} on {num_workers} worker{'s' if num_workers > 1 else ''}, "
        f"{num_workers * size * accumulated:,} images a step: {num_workers} x {size} x {accumulated} accumulated"
    )


def deepspeed_settings(config: ExperimentConfig) -> dict[str, JsonValue] | None:
    """Return what ``experiments/deepspeed/STRATEGY.json`` says; None for ddp.

    Raises:
        ConfigError: if the file is not found, is no JSON object, or is of another ZeRO stage.
    """
    strategy = config.cluster.strategy
    if strategy == "ddp":
        return None
    path = find_experiment(Path("experiments") / "deepspeed" / f"{strategy}.json", folder="deepspeed")
    try:
        settings = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not readable JSON ({error})") from None
    zero = settings.get("zero_optimization") if isinstance(settings, dict) else None
    stage = cast("dict[str, JsonValue]", zero).get("stage") if isinstance(zero, dict) else None
    if stage != ZERO_STAGES[strategy]:
        raise ConfigError(
            f"{path}: zero_optimization.stage is {stage}, expected {ZERO_STAGES[strategy]} for {strategy}"
        )
    return cast("dict[str, JsonValue]", settings)


def check_group(cluster: Cluster, *, given: int) -> None:
    """Check that this worker trains with all the others it was started with.

    Args:
        cluster: what was asked for.
        given: workers that were started.

    Raises:
        TrainingError: if the process group has another size, or another number than asked was started.
    """
    if ranks.world_size() != given:
        raise TrainingError(f"{given} workers were started, but the process group has {ranks.world_size()}")
    if given != cluster.num_workers:
        raise TrainingError(f"cluster.num_workers asks for {cluster.num_workers} workers, but {given} were started")
