"""Section ``training``: the optimisation, equal for every group."""

from typing import Annotated, Literal, cast

from pydantic import Field, StrictBool, model_validator

from coordexp.config.schema.fields import (
    WHOLE,
    AboveOne,
    BelowOne,
    Fraction,
    NotNegative,
    Positive,
    PositiveInt,
    Section,
    key,
)


class Lora(Section):
    """Low-rank adapters on linear layers."""

    rank: Annotated[int, Field(strict=True, ge=1), WHOLE] = key(16, "results", decides=["weights"])
    """Rank of the adapters; it buys capacity with memory."""
    alpha: Positive = key(32.0, "results", decides=["weights"])
    """Scale of the adapters: they add alpha / rank."""
    dropout: BelowOne = key(0.0, "results", decides=["weights"])
    """Dropout before the adapters, in training only."""
    vision: StrictBool = key(True, "results", decides=["weights"])
    """Adapters in the vision tower, too."""


class Training(Section):
    """The optimisation, equal for every group."""

    optimizer: Literal["multimodal", "multimodal_coord_offset"] = key("multimodal", "results")
    """AdamW with parameter groups for vision, aligner and language model; multimodal_coord_offset adds the coord
    offsets."""
    tuning: Literal["lora", "dora", "full"] = key("lora", "results", decides=["weights"])
    """Train lora or dora adapters (dora is a little better, and slower), or every weight (full), without an offset
    adapter."""
    lora: Lora = Lora()
    learning_rate: Positive = key(1e-4, "results")
    """Peak learning rate of the language model and its adapters."""
    vit_lr: Positive | None = key(None, "results")
    """Peak learning rate of the vision tower; null: training.learning_rate."""
    aligner_lr: Positive | None = key(None, "results")
    """Peak learning rate of the vision mergers; null: training.learning_rate."""
    weight_decay: NotNegative = key(0.0, "results")
    """AdamW's weight decay of matrices; norms and biases are not decayed."""
    adam_beta1: BelowOne = key(0.9, "results")
    """AdamW's memory of the gradient."""
    adam_beta2: BelowOne = key(0.999, "results")
    """AdamW's memory of the squared gradient; at 0.98 a short run forgets its first, large ones."""
    max_steps: PositiveInt | None = key(1000, "results", decides=["tokens"])
    """Optimizer steps of a run; null if epochs is set."""
    epochs: Positive | None = key(None, "results", decides=["tokens"])
    """Passes over the training images, instead of max_steps."""
    per_device_batch_size: PositiveInt = key(8, "rounding", decides=["tokens"])
    """Images of a microbatch; costs memory. Results depend on batch x accumulation x workers only."""
    gradient_accumulation_steps: PositiveInt = key(1, "rounding", decides=["tokens"])
    """Microbatches of a step: a larger batch for time instead of memory."""
    warmup_fraction: Fraction = key(0.03, "results")
    """Share of the steps in which the learning rates rise from 0."""
    lr_schedule: Literal["cosine", "linear", "constant"] = key("cosine", "results")
    """How the learning rates fall after the warm-up."""
    normalise_by: Literal["step", "data"] = key("step", "results")
    """A step's losses are divided by its own count of tokens and boxes (step), or by that of as many average images
    (data), so that an object weighs the same in a crowded image."""
    max_grad_norm: Positive = key(1.0, "results")
    """Larger gradients are scaled down to this norm."""
    precision: Literal["float32", "bfloat16"] = key("float32", "results")
    """Type of training's matrix products; bfloat16 on GPUs for speed."""
    gradient_checkpointing: StrictBool = key(False, "results")
    """Compute activations again in the backward pass: a third slower, far less memory."""
    deterministic: StrictBool | None = key(None, "rounding")
    """Only algorithms that repeat every bit, slow on GPUs; null: true without GPUs, false with them
    (cluster.gpus_per_worker)."""
    logging_steps: PositiveInt = key(10, "record")
    """Steps between two rows of losses."""
    log_term_gradients: PositiveInt | None = key(None, "record")
    """Steps between measurements of each term's gradient norm, which cost a backward pass each; null: never."""
    alarm_patience: PositiveInt = key(5, "record")
    """Logging steps without gradient or units before a term that is on raises an alarm."""
    alarm_factor: AboveOne = key(5.0, "record")
    """Factor between training and validation loss of a term that raises an alarm."""
    checkpoint_steps: PositiveInt = key(100, "record")
    """Steps between checkpoints: what an interruption can cost; a checkpoint also costs time."""
    keep_checkpoints: PositiveInt = key(2, "record")
    """Checkpoints of a run that are kept, the newest ones."""
    num_threads: PositiveInt | None = key(None, "rounding")
    """CPU threads of a worker; their number changes last digits. null: its CPUs."""

    @model_validator(mode="before")
    @classmethod
    def _epochs_replace_the_default(cls, data: object) -> object:
        """Let ``epochs`` alone unset the default of ``max_steps``."""
        if not isinstance(data, dict):
            return data
        values = cast("dict[str, object]", data)
        if values.get("epochs") is None:
            return values
        return {"max_steps": None, **values}

    @model_validator(mode="after")
    def _keys_agree(self) -> "Training":
        if (self.max_steps is None) == (self.epochs is None):
            problem = "both are null" if self.epochs is None else "both are given"
            raise ValueError(f"max_steps and epochs: {problem}; set one of them, and the other to null")
        vision_rates = {"vit_lr": self.vit_lr, "aligner_lr": self.aligner_lr}
        shown_rates = [f"{name}: {rate:g}" for name, rate in vision_rates.items() if rate is not None]
        if shown_rates and not self.lora.vision:
            raise ValueError(
                f"{' and '.join(shown_rates)} would move nothing, since lora.vision: false trains neither vision tower "
                "nor aligner; leave it out, or set lora.vision: true"
            )
        return self

    @property
    def num_steps(self) -> int:
        """Optimizer steps of a run; those of ``epochs`` must be counted, see ``ExperimentConfig.with_steps``."""
        assert self.max_steps is not None, "training.epochs: no data was read yet"
        return self.max_steps
