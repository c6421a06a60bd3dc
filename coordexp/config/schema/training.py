"""Section ``training``: the optimisation, equal for every group."""

from typing import Literal

from pydantic import Field, StrictBool

from coordexp.config.schema.fields import BelowOne, Fraction, NotNegative, Positive, PositiveInt, Section


class Lora(Section):
    """Low-rank adapters on linear layers."""

    rank: PositiveInt = 16
    alpha: Positive = 32.0
    dropout: BelowOne = 0.0
    vision: StrictBool = True


class Training(Section):
    """The optimisation, equal for every group."""

    optimizer: Literal["multimodal", "multimodal_coord_offset"] = "multimodal"
    tuning: Literal["lora", "dora", "full"] = "lora"
    lora: Lora = Lora()
    learning_rate: Positive = 1e-4
    vit_lr: Positive | None = None
    aligner_lr: Positive | None = None
    weight_decay: NotNegative = 0.0
    adam_beta1: BelowOne = 0.9
    adam_beta2: BelowOne = 0.999
    max_steps: PositiveInt = 1000
    per_device_batch_size: PositiveInt = 8
    gradient_accumulation_steps: PositiveInt = 1
    warmup_fraction: Fraction = 0.03
    lr_schedule: Literal["cosine", "linear", "constant"] = "cosine"
    max_grad_norm: Positive = 1.0
    precision: Literal["float32", "bfloat16"] = "float32"
    gradient_checkpointing: StrictBool = False
    logging_steps: PositiveInt = 10
    log_term_gradients: PositiveInt | None = Field(
        default=None, description="measure the gradient of each loss term every so many steps; None: never"
    )
    alarm_patience: PositiveInt = Field(
        default=5, description="logging steps without gradient or units before a term that is on raises an alarm"
    )
    alarm_factor: float = Field(
        default=5.0, strict=True, gt=1, description="training and validation loss of a term further apart: an alarm"
    )
    checkpoint_steps: PositiveInt = 100
    keep_checkpoints: PositiveInt = 2
    num_threads: PositiveInt | None = Field(default=None, description="CPU threads of a worker; None: its CPUs")
