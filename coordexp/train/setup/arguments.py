"""What we ask of Hugging Face's Trainer, and a check, before the first step, of what the libraries made of it."""

import os
from pathlib import Path

import torch
from torch import nn
from transformers import TrainingArguments

from coordexp.config.schema import RunConfig
from coordexp.errors import TrainingError
from coordexp.runs import ranks
from coordexp.train.setup.strategy import ZERO_STAGES, deepspeed_settings
from coordexp.train.setup.zero import prepare_deepspeed, set_deepspeed_device

_BATCHES_AHEAD = 4  # for each loader process: a few MB of uint8 each, and slack for some slow images
_LR_SCHEDULERS = {"cosine": "cosine", "linear": "linear", "constant": "constant_with_warmup"}


def training_arguments(config: RunConfig, *, output_dir: Path) -> TrainingArguments:
    """Map the ``training`` section to Trainer's arguments.

    Trainer saves nothing by itself: :class:`coordexp.train.schedule.Schedule` says when.
    """
    training = config.training
    deepspeed = deepspeed_settings(config)
    set_deepspeed_device()
    if deepspeed is not None:
        prepare_deepspeed()
    on_gpu = torch.cuda.is_available()
    has_loader_workers = config.data.num_workers > 0
    backend = None
    if ranks.in_process_group():
        backend = "nccl" if on_gpu else "gloo"
    return TrainingArguments(
        output_dir=str(output_dir),
        use_cpu=not on_gpu,
        seed=config.experiment.seed,
        data_seed=config.experiment.seed,
        max_steps=training.num_steps,
        per_device_train_batch_size=training.per_device_batch_size,
        gradient_accumulation_steps=training.gradient_accumulation_steps,
        learning_rate=training.learning_rate,
        adam_beta1=training.adam_beta1,
        adam_beta2=training.adam_beta2,
        lr_scheduler_type=_LR_SCHEDULERS[training.lr_schedule],
        warmup_steps=round(training.warmup_fraction * training.num_steps),
        max_grad_norm=training.max_grad_norm,
        # Under DeepSpeed the model does bfloat16 itself (zero.autocast_forward), so that what trains stays float32.
        bf16=training.precision == "bfloat16" and deepspeed is None,
        deepspeed=deepspeed,
        activation_checkpointing=training.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False} if training.gradient_checkpointing else None,
        logging_steps=training.logging_steps,
        # A loss that is not finite ends the run. Trainer's filter would replace it by an average in the log.
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        log_level="error",
        remove_unused_columns=False,
        dataloader_num_workers=config.data.num_workers,
        dataloader_pin_memory=on_gpu,
        # By default a process that was itself spawned, as Ray's workers are, spawns its own children, and would pickle
        # the whole data set for each of them.
        dataloader_multiprocessing_context="fork" if has_loader_workers else None,
        dataloader_prefetch_factor=_BATCHES_AHEAD if has_loader_workers else None,
        dataloader_persistent_workers=has_loader_workers,
        # With pinned memory, the copy of a batch to the device runs during the step before it.
        accelerator_config={"non_blocking": on_gpu},
        ddp_find_unused_parameters=False,
        ddp_backend=backend,
    )


def steps_on_device(arguments: TrainingArguments) -> bool:
    """Return whether to use the fused AdamW: on CUDA, without DeepSpeed."""
    return arguments.device.type == "cuda" and arguments.deepspeed is None


def choose_algorithms(*, deterministic: bool) -> None:
    """Set torch to algorithms that repeat every bit, or to the fastest ones."""
    if deterministic and torch.cuda.is_available():
        # cuBLAS repeats its bits only with a workspace of a fixed size. It reads the variable before its first product.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    # Deterministic torch would also fill every new tensor with NaN. That pass over memory buys nothing here: no tensor
    # is read before it is written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]


def check_setup(config: RunConfig, engine: nn.Module, *, trainer_world_size: int) -> None:
    """Check that as many processes share a batch, in the way, as the configuration asks for.

    Some libraries fall back to one process, or to DDP, without a word. The run would then train on other batches than
    it says.

    Args:
        config: the run.
        engine: the model as the trainer wraps it.
        trainer_world_size: the number of processes that the trainer knows of.

    Raises:
        TrainingError: if the libraries made something else of the request.
    """
    num_workers = config.cluster.num_workers
    strategy = config.cluster.strategy
    num_ranks = ranks.world_size()
    num_shares, stage = shares_and_stage(engine)
    has_all_workers = num_ranks == trainer_world_size == num_shares == num_workers
    if not has_all_workers or stage != ZERO_STAGES[strategy]:
        raise TrainingError(
            f"asked for cluster.strategy: {strategy} on {num_workers} workers that share a batch, but {num_ranks} "
            f"train together, the trainer knows {trainer_world_size}, and {type(engine).__name__} with ZeRO stage "
            f"{stage} averages over {num_shares}"
        )


def shares_and_stage(engine: nn.Module) -> tuple[int, int]:
    """Return the number of processes that an engine averages gradients over, and its ZeRO stage."""
    if isinstance(engine, nn.parallel.DistributedDataParallel):
        return torch.distributed.get_world_size(engine.process_group), 0
    if type(engine).__name__ != "DeepSpeedEngine":  # by name: to import deepspeed takes seconds
        return 1, 0
    from deepspeed import DeepSpeedEngine

    assert isinstance(engine, DeepSpeedEngine)
    return int(engine.dp_world_size or 1), int(engine.zero_optimization_stage())
