"""What is asked of Hugging Face's trainer, and what the libraries made of it, checked before the first step."""

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

_BATCHES_AHEAD = 4  # of each loader worker: some uint8 MB each, and slack for a few slow images


def training_arguments(config: RunConfig, *, output_dir: Path) -> TrainingArguments:
    """Map the ``training`` section; saving and logging steps are driven by our callback.

    Under DeepSpeed the model does bfloat16 itself (``zero.autocast_forward``), so that what trains stays float32.
    """
    training = config.training
    deepspeed = deepspeed_settings(config)
    set_deepspeed_device()
    if deepspeed is not None:
        prepare_deepspeed()
    on_gpu = torch.cuda.is_available()
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
        lr_scheduler_type={"cosine": "cosine", "linear": "linear", "constant": "constant_with_warmup"}[
            training.lr_schedule
        ],
        warmup_steps=round(training.warmup_fraction * training.num_steps),
        max_grad_norm=training.max_grad_norm,
        bf16=training.precision == "bfloat16" and deepspeed is None,
        deepspeed=deepspeed,
        activation_checkpointing=training.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False} if training.gradient_checkpointing else None,
        logging_steps=training.logging_steps,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        log_level="error",
        remove_unused_columns=False,
        dataloader_num_workers=config.data.num_workers,
        dataloader_pin_memory=on_gpu,
        # Set here, since a process that was spawned itself would spawn, and pickle the whole data set to each of them.
        dataloader_multiprocessing_context="fork" if config.data.num_workers else None,
        dataloader_prefetch_factor=_BATCHES_AHEAD if config.data.num_workers else None,
        dataloader_persistent_workers=config.data.num_workers > 0,
        # The copy to the device runs beside the step before it, which pinned memory makes possible.
        accelerator_config={"non_blocking": on_gpu},
        ddp_find_unused_parameters=False,
        ddp_backend=("nccl" if on_gpu else "gloo") if ranks.in_process_group() else None,
    )


def steps_on_device(arguments: TrainingArguments) -> bool:
    """Return whether to use the fused AdamW: on CUDA, without DeepSpeed."""
    return arguments.device.type == "cuda" and arguments.deepspeed is None


def choose_algorithms(*, deterministic: bool) -> None:
    """Keep to algorithms that repeat every bit, or leave torch its fastest.

    cuBLAS repeats its bits only with a workspace of a fixed size, and reads that from the environment before its
    first product.
    """
    if deterministic and torch.cuda.is_available():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    # It would also fill every new tensor with NaN, a pass over memory that nothing here reads before it is written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]


def check_setup(config: RunConfig, engine: nn.Module, *, trainer_world_size: int) -> None:
    """Check what the libraries made of the request: some fall back to one process, or to DDP, and say nothing."""
    workers, strategy = config.cluster.num_workers, config.cluster.strategy
    shares, stage = shares_and_stage(engine)
    found = (ranks.world_size(), trainer_world_size, shares, stage)
    if found != (workers, workers, workers, ZERO_STAGES[strategy]):
        raise TrainingError(
            f"asked for cluster.strategy: {strategy} on {workers} workers that share a batch, but {found[0]} train "
            f"together, the trainer knows {trainer_world_size}, and {type(engine).__name__} with ZeRO stage {stage} "
            f"averages over {shares}"
        )


def shares_and_stage(engine: nn.Module) -> tuple[int, int]:
    """Return over how many processes an engine averages, and its ZeRO stage."""
    if isinstance(engine, nn.parallel.DistributedDataParallel):
        return torch.distributed.get_world_size(engine.process_group), 0
    if type(engine).__name__ != "DeepSpeedEngine":  # by name: deepspeed is imported where it is used only
        return 1, 0
    from deepspeed import DeepSpeedEngine

    assert isinstance(engine, DeepSpeedEngine)
    return int(engine.dp_world_size or 1), int(engine.zero_optimization_stage())
