"""The whole experiment as one frozen, validated object; the only truth after loading."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StrictBool, model_validator

from coordexp.config.fields import BelowOne, Fraction, Name, NaturalInt, NotNegative, Positive, PositiveInt, Section
from coordexp.coord_tokens.codec import NUM_BINS


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


class Shapes(Section):
    """The generated data set, for ``data.format: shapes``."""

    num_train: PositiveInt = 2400
    num_val: PositiveInt = 300
    max_objects: PositiveInt = 4
    min_side_px: Annotated[int, Field(strict=True, ge=8, le=128)] = 40
    max_side_px: Annotated[int, Field(strict=True, ge=9, le=128)] = 124
    seed: NaturalInt = 0

    @model_validator(mode="after")
    def _sides_are_a_range(self) -> "Shapes":
        if self.min_side_px >= self.max_side_px:
            raise ValueError(f"min_side_px {self.min_side_px} is not below max_side_px {self.max_side_px}")
        return self


class Data(Section):
    """Where the data is and how a sample becomes a sequence."""

    format: Literal["shapes", "coco"] = "shapes"
    train_annotations: Path | None = None
    train_images: Path | None = None
    val_annotations: Path | None = None
    val_images: Path | None = None
    shapes: Shapes = Shapes()
    structure: Literal["native", "spec"] = "native"
    prompt: str = Field(default="Describe all objects in the image with their bounding boxes.", min_length=1)
    ordering: Literal["top_left", "random"] = "top_left"
    max_objects: PositiveInt = 30
    max_length: PositiveInt = 4096
    min_pixels: PositiveInt | None = None
    max_pixels: PositiveInt | None = None
    max_bad_fraction: Fraction = 0.0
    length_buckets: StrictBool = True
    num_workers: NaturalInt = 0
    image_cache_mib: NaturalInt = 0

    @model_validator(mode="after")
    def _coco_needs_files(self) -> "Data":
        missing = [
            name
            for name in ("train_annotations", "train_images", "val_annotations", "val_images")
            if self.format == "coco" and self.model_dump()[name] is None
        ]
        if missing:
            raise ValueError(f"format coco needs {', '.join('data.' + name for name in missing)}")
        return self

    @model_validator(mode="after")
    def _pixels_are_a_range(self) -> "Data":
        if self.min_pixels is not None and self.max_pixels is not None and self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels {self.min_pixels} is above max_pixels {self.max_pixels}")
        return self


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
    checkpoint_steps: PositiveInt = 100
    keep_checkpoints: PositiveInt = 2
    num_threads: PositiveInt | None = Field(default=None, description="CPU threads of a worker; None: its CPUs")


class CoordTokens(Section):
    """Coord tokens in the data."""

    enabled: StrictBool = True
    skip_bbox_norm: StrictBool = True


class CoordSoftCeW1(Section):
    """Group D: soft CE, Wasserstein-1 and the coord-vocabulary gate."""

    enabled: StrictBool = False
    soft_ce_weight: NotNegative = 1.0
    w1_weight: NotNegative = 1.0
    gate_weight: NotNegative = 1.0
    temperature: Positive = 1.0
    target_sigma: Positive = 2.0
    target_truncate: PositiveInt | None = 16


class IdRange(Section):
    """Token ids, both ends included."""

    start: NaturalInt
    end: NaturalInt

    @model_validator(mode="after")
    def _holds_all_bins(self) -> "IdRange":
        if self.end - self.start + 1 != NUM_BINS:
            raise ValueError(f"start..end must hold {NUM_BINS} ids, got {self.end - self.start + 1}")
        return self


class CoordOffset(Section):
    """The coord-offset adapter."""

    enabled: StrictBool = False
    tie_head: StrictBool = True
    ids: IdRange | None = Field(default=None, description="checked against the tokenizer; None: take the tokenizer's")
    embed_lr: Positive = 1e-4
    head_lr: Positive = 1e-4
    weight_decay: NotNegative = 0.0
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"


class Custom(Section):
    """Switches of the method, named as in the specification."""

    coord_tokens: CoordTokens = CoordTokens()
    coord_soft_ce_w1: CoordSoftCeW1 = CoordSoftCeW1()
    coord_offset: CoordOffset = CoordOffset()


class Objective(Section):
    """Loss flags and weights: what the groups differ in."""

    use_coord_ce: StrictBool = True
    use_coordexp_loss: StrictBool = False
    use_geom_loss: StrictBool = False
    lambda_coord: NotNegative = 1.0
    lambda_coord_ce: NotNegative = 1.0
    alpha_l1: NotNegative = 1.0
    beta_giou: NotNegative = 1.0
    extra: dict[str, NotNegative] = Field(default={}, description="further terms by name, with their weights")

    @model_validator(mode="after")
    def _geometry_needs_boxes(self) -> "Objective":
        if self.use_geom_loss and not self.use_coordexp_loss:
            raise ValueError("use_geom_loss needs use_coordexp_loss: true (the loss is computed on expected boxes)")
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
    max_artifact_mib: NaturalInt = Field(default=512, description="larger merged checkpoints are logged by path only")


class Cluster(Section):
    """What a run needs of the cluster, and how runs are scheduled."""

    executor: Literal["tune", "inline"] = "tune"
    num_workers: PositiveInt = 1
    cpus_per_worker: PositiveInt = 1
    gpus_per_worker: NotNegative = 0.0
    max_concurrent_runs: PositiveInt | None = None
    max_failures: NaturalInt = 1

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
    def _offset_needs_frozen_tables(self) -> "ExperimentConfig":
        if self.custom.coord_offset.enabled and self.training.tuning == "full":
            raise ValueError("custom.coord_offset needs frozen tables; training.tuning: full trains them (choose one)")
        return self
