"""What the libraries made of a strategy, checked between setting up and the first step."""

from collections.abc import Callable

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.offset_adapter import active_offset, inner_model
from coordexp.errors import TrainingError
from coordexp.runs import ranks
from coordexp.train.setup.strategy import ZERO_STAGES, accumulation_steps
from coordexp.train.setup.zero import forget_deepspeed, keep_whole


def check_setup(config: ExperimentConfig, engine: nn.Module, *, trainer_world_size: int) -> None:
    """Check what the libraries made of the request: some fall back to one process, or to DDP, and say nothing.

    Args:
        config: of the run.
        engine: the model as it will train, in its wrapper.
        trainer_world_size: processes that the trainer knows of.

    Raises:
        TrainingError: with what was asked for and what was set up.
    """
    workers, strategy = ranks.world_size(), config.cluster.strategy
    accumulation_steps(config, num_workers=workers)
    if trainer_world_size != workers:
        raise TrainingError(
            f"asked for {workers} workers that train together, but the trainer's world size is {trainer_world_size}: "
            "each would train alone"
        )
    shares, stage = _shares_and_stage(engine)
    if stage != ZERO_STAGES[strategy]:
        raise TrainingError(f"asked for cluster.strategy: {strategy}, but got {_engine_name(engine, stage)}")
    if shares != workers:
        raise TrainingError(
            f"asked for {workers} workers that share a batch, but {_engine_name(engine, stage)} averages over {shares}"
        )


class SetupCheck(TrainerCallback):
    """Checks the set-up between building it and the first step; ``engine`` returns the wrapped model."""

    def __init__(self, config: ExperimentConfig, engine: Callable[[], nn.Module]) -> None:
        self._config = config
        self._engine = engine

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Check the set-up; from here on transformers need not know of DeepSpeed."""
        forget_deepspeed()
        engine = self._engine()
        check_setup(self._config, engine, trainer_world_size=args.world_size)
        head, offset = inner_model(engine).get_output_embeddings(), active_offset(engine)
        assert head is not None
        keep_whole(engine, [*head.parameters(), *([] if offset is None else offset.parameters())])


def _shares_and_stage(engine: nn.Module) -> tuple[int, int]:
    """Return over how many processes an engine averages, and its ZeRO stage."""
    if isinstance(engine, nn.parallel.DistributedDataParallel):
        return torch.distributed.get_world_size(engine.process_group), 0
    if type(engine).__name__ != "DeepSpeedEngine":  # by name: deepspeed is imported where it is used only
        return 1, 0
    from deepspeed import DeepSpeedEngine

    assert isinstance(engine, DeepSpeedEngine)
    return int(engine.dp_world_size or 1), int(engine.zero_optimization_stage())


def _engine_name(engine: nn.Module, stage: int) -> str:
    return type(engine).__name__ + (f" with ZeRO stage {stage}" if stage else "")
