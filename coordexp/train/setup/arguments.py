"""Configuration -> Hugging Face TrainingArguments."""

from pathlib import Path

import torch
from transformers import TrainingArguments

from coordexp.config.schema import ExperimentConfig
from coordexp.runs import ranks
from coordexp.train.setup.strategy import accumulation_steps, deepspeed_settings
from coordexp.train.setup.zero import prepare_deepspeed, set_deepspeed_device

_BATCHES_AHEAD = 4  # of each loader worker: some uint8 MB each, and slack for a few slow images


def training_arguments(config: ExperimentConfig, *, output_dir: Path) -> TrainingArguments:
    """Map the ``training`` section; saving and logging steps are driven by our callback.

    Under DeepSpeed the model does bfloat16 itself (``zero.autocast_forward``), so that what trains stays float32.

    Raises:
        ConfigError: if the DeepSpeed settings cannot be used.
        TrainingError: if the process group is not the one that was asked for.
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
        max_steps=training.max_steps,
        per_device_train_batch_size=training.per_device_batch_size,
        gradient_accumulation_steps=accumulation_steps(config, num_workers=ranks.world_size()),
        learning_rate=training.learning_rate,
        adam_beta1=training.adam_beta1,
        adam_beta2=training.adam_beta2,
        lr_scheduler_type={"cosine": "cosine", "linear": "linear", "constant": "constant_with_warmup"}[
            training.lr_schedule
        ],
        warmup_steps=round(training.warmup_fraction * training.max_steps),
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
