"""How workers share a run, as replicas (DDP) or by DeepSpeed's ZeRO-2, and remarks on what keys mean in this run.

Neither transformers nor peft is imported: the driver of every run imports this module, and trains nothing.
"""

from pathlib import Path

from coordexp.config.schema import RunConfig
from coordexp.errors import ConfigError, counted
from coordexp.files import JsonValue, parse_json
from coordexp.runs import ranks
from coordexp.shipped import find_experiment

ZERO_STAGES = {"ddp": 0, "zero2": 2}


def check_strategy(config: RunConfig) -> None:
    """Check, before anything starts, that the strategy can do exactly what the run asks for.

    Raises:
        ConfigError: if it cannot.
    """
    cluster = config.cluster
    if cluster.strategy == "ddp":
        return
    if cluster.num_workers == 1:
        raise ConfigError(
            f"cluster.strategy: {cluster.strategy} has nothing to share with cluster.num_workers: 1; use ddp"
        )
    if config.training.log_term_gradients is not None:
        raise ConfigError(
            f"training.log_term_gradients with cluster.strategy: {cluster.strategy}: it goes backwards for each term, "
            "which DeepSpeed would take for the step itself; use ddp, or leave it out"
        )
    deepspeed_settings(config)


def samples_at_once(config: RunConfig) -> int:
    """Return the number of samples that an epoch must be a multiple of: one microbatch for each of several ranks."""
    num_ranks = ranks.world_size()
    return 1 if num_ranks == 1 else num_ranks * config.training.per_device_batch_size


def strategy_line(config: RunConfig) -> str:
    """Return e.g. ``zero2 on 2 workers, 16 images a step: 2 x 4 x 2 accumulated``."""
    num_workers = config.cluster.num_workers
    training = config.training
    name = config.cluster.strategy if num_workers > 1 else "one process"
    return (
        f"{name} on {counted(num_workers, 'worker')}, {counted(config.global_batch_size, 'image')} a step: "
        f"{num_workers} x {training.per_device_batch_size} x {training.gradient_accumulation_steps} accumulated"
    )


def deepspeed_settings(config: RunConfig) -> dict[str, JsonValue] | None:
    """Return the settings of ``experiments/deepspeed/STRATEGY.json``; None for ddp.

    Raises:
        ConfigError: if the file cannot be read, or sets another stage than the strategy's.
    """
    strategy = config.cluster.strategy
    if strategy == "ddp":
        return None
    path = find_experiment(Path("experiments") / "deepspeed" / f"{strategy}.json", folder="deepspeed")
    try:
        settings = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not readable JSON ({error})") from None
    match settings:
        case {"zero_optimization": {"stage": stage}} if stage == ZERO_STAGES[strategy]:
            return settings
        case _:
            raise ConfigError(f"{path}: expected zero_optimization.stage {ZERO_STAGES[strategy]} for {strategy}")


def switch_notes(config: RunConfig) -> list[str]:
    """Return remarks on keys that mean something special in this run, or have no effect in it."""
    notes: list[str] = []
    if config.data.is_jsonl(config.data.val_annotations):
        notes.append("AP: the descriptions of the validation JSONL are its categories, an object's area is its box's")
    if config.trains_offset:
        return notes
    if config.text_arm:
        notes.append("custom.coord_tokens.enabled: false: coordinates are digits, no row is added and no offset trains")
    elif config.training.tuning != "full":
        notes.append("custom.coord_offset.enabled: false: the rows of the coord tokens stay as they start")
        if config.data.structure == "spec":
            notes.append("data.structure: spec: so do those of the added object tokens")
    if config.training.optimizer == "multimodal_coord_offset":
        notes.append("training.optimizer: multimodal_coord_offset: without offsets it has the groups of multimodal")
    return notes
