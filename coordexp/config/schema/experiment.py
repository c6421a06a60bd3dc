"""The whole experiment as one frozen, validated object; the only truth after loading."""

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, StrictBool, model_validator

from coordexp.config.schema.data import Data
from coordexp.config.schema.fields import Name, NaturalInt, NotNegative, Positive, PositiveInt, Section
from coordexp.config.schema.objective import Custom, Objective
from coordexp.config.schema.training import Training


class Experiment(Section):
    """Which experiment a run belongs to, and which of its runs it is."""

    name: Name = "experiment"
    runs_dir: Path = Path("runs")
    group: Name = "A"
    seed: NaturalInt = 0


class Model(Section):
    """The checkpoint to start from."""

    path: str = Field(default="embedded", min_length=1, description="embedded, a local directory, or a hub id")
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    vocab_init: Literal["mean", "numeric"] = "numeric"

    @model_validator(mode="after")
    def _revision_needs_a_hub(self) -> "Model":
        if self.path == "embedded" and self.revision is not None:
            raise ValueError("revision has no effect on the embedded base; remove it or name a hub id in model.path")
        return self

    @model_validator(mode="after")
    def _flash_is_half_precision(self) -> "Model":
        if self.attn_implementation == "flash_attention_2" and self.dtype == "float32":
            raise ValueError(
                "attn_implementation: flash_attention_2 computes in half precision only; set dtype: bfloat16, or sdpa"
            )
        return self


class Evaluation(Section):
    """How a model is evaluated, equal for every group."""

    batch_size: PositiveInt = 16
    max_new_tokens: PositiveInt = 512
    decoding: tuple[Literal["constrained", "free"], ...] = ("constrained", "free")
    score: Literal["coord", "desc", "coord_desc", "constant"] = "coord_desc"
    aliases: dict[str, str] = Field(default={})
    every_steps: PositiveInt | None = Field(
        default=None, description="evaluate a subset this often; None: only once, last"
    )
    subset_images: PositiveInt = 200
    loss_images: NaturalInt = Field(default=200, description="validation images of the teacher-forced losses")

    @model_validator(mode="after")
    def _headline_is_there(self) -> "Evaluation":
        if "constrained" not in self.decoding:
            raise ValueError("decoding must include constrained, the headline of every comparison")
        if len(set(self.decoding)) != len(self.decoding):
            raise ValueError(f"decoding must name each way once, got {list(self.decoding)}")
        return self


class Tracking(Section):
    """Where runs are recorded."""

    uri: str | None = Field(default=None, description="None: MLFLOW_TRACKING_URI, else sqlite in runs_dir")
    max_artifact_mib: NaturalInt = Field(
        default=512, description="larger merged checkpoints stay in storage, MLflow lists their URI"
    )

    @model_validator(mode="after")
    def _uri_holds_no_secret(self) -> "Tracking":
        parts = urlsplit(self.uri or "")
        if "@" in parts.netloc or (parts.query and parts.scheme != "sqlite"):  # config.yaml and MLflow would keep it
            raise ValueError(
                "uri must hold no user, password or query, since it is written into records; set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, in the environment"
            )
        return self


class Cluster(Section):
    """What a run needs of the cluster, and how runs are scheduled."""

    executor: Literal["tune", "inline"] = "tune"
    num_workers: PositiveInt = 1
    cpus_per_worker: PositiveInt = 1
    gpus_per_worker: NotNegative = 0.0
    max_concurrent_runs: PositiveInt | None = None
    max_failures: NaturalInt = 1
    strategy: Literal["ddp", "zero2", "zero3"] = Field(
        default="ddp", description="how several workers share a run: replicas, or DeepSpeed's ZeRO stages 2 and 3"
    )
    min_workers: PositiveInt | None = Field(
        default=None, description="a run goes on with as few workers while nodes are missing; None: exactly num_workers"
    )
    max_gpu_hours: Positive | None = Field(
        default=None,
        description="stop cleanly before more is spent (CPU hours where runs use no GPU); whole seeds first",
    )

    @model_validator(mode="after")
    def _min_workers_is_a_minimum(self) -> "Cluster":
        if self.min_workers is not None and self.min_workers > self.num_workers:
            raise ValueError(f"min_workers: {self.min_workers} is more than num_workers: {self.num_workers}")
        return self

    @model_validator(mode="after")
    def _gpus_can_be_given(self) -> "Cluster":
        if self.gpus_per_worker % 1 and (self.gpus_per_worker > 1 or self.num_workers > 1):
            raise ValueError(
                f"gpus_per_worker: {self.gpus_per_worker} cannot be given; a part of a GPU (below 1) only works "
                "with num_workers: 1, since NCCL refuses two ranks on one GPU"
            )
        return self


class Ablation(Section):
    """Groups x seeds, and what may differ between groups."""

    groups: dict[Name, dict[str, object]] = Field(default={}, description="name -> the keys it changes")
    seeds: tuple[NaturalInt, ...] = Field(default=(0,), min_length=1)
    factor: tuple[str, ...] = ("objective", "custom.coord_soft_ce_w1")
    allow_differences: StrictBool = Field(
        default=False, description="show what else differs beside the results, instead of refusing to compare"
    )

    @model_validator(mode="after")
    def _seeds_are_distinct(self) -> "Ablation":
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds must be distinct, got {list(self.seeds)}")
        return self


class ExperimentConfig(Section):
    """A whole experiment, or one run of it."""

    experiment: Experiment = Experiment()
    model: Model = Model()
    data: Data = Data()
    training: Training = Training()
    custom: Custom = Custom()
    objective: Objective = Objective()
    evaluation: Evaluation = Evaluation()
    tracking: Tracking = Tracking()
    cluster: Cluster = Cluster()
    ablation: Ablation = Ablation()

    @model_validator(mode="after")
    def _coord_tokens_are_supervised(self) -> "ExperimentConfig":
        objective = self.objective
        supervised = objective.use_coord_ce or objective.use_geom_loss or self.custom.coord_soft_ce_w1.enabled
        if self.custom.coord_tokens.enabled and not supervised and not objective.extra:
            raise ValueError(
                "custom.coord_tokens.enabled needs a coordinate term: switch on objective.use_coord_ce, "
                "objective.use_geom_loss or custom.coord_soft_ce_w1.enabled"
            )
        return self

    @model_validator(mode="after")
    def _coordinate_switches_need_coord_tokens(self) -> "ExperimentConfig":
        switches = {
            "objective.use_coordexp_loss": self.objective.use_coordexp_loss,
            "custom.coord_soft_ce_w1.enabled": self.custom.coord_soft_ce_w1.enabled,
            "custom.coord_offset.enabled": self.custom.coord_offset.enabled,
        }
        switched_on = [key for key, on in switches.items() if on]
        if switched_on and not self.custom.coord_tokens.enabled:
            raise ValueError(f"{', '.join(switched_on)} would have no effect without custom.coord_tokens.enabled: true")
        return self

    @model_validator(mode="after")
    def _packing_is_exact(self) -> "ExperimentConfig":
        if self.data.packing and self.model.attn_implementation == "flash_attention_2":
            raise ValueError(
                "data.packing is shown to keep samples apart with model.attn_implementation sdpa and eager only; "
                "choose one of them, or data.packing: false"
            )
        return self

    @model_validator(mode="after")
    def _offset_needs_frozen_tables(self) -> "ExperimentConfig":
        if self.custom.coord_offset.enabled and self.training.tuning == "full":
            raise ValueError("custom.coord_offset needs frozen tables; training.tuning: full trains them (choose one)")
        return self
