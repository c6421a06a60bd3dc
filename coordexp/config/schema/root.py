"""The whole experiment as one frozen, validated object; the only truth after loading."""

from collections.abc import Mapping
from typing import Self

from pydantic import PrivateAttr, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails

from coordexp.config.schema.ablation import Ablation
from coordexp.config.schema.cluster import Cluster
from coordexp.config.schema.data import Data
from coordexp.config.schema.evaluation import Evaluation
from coordexp.config.schema.experiment import Experiment
from coordexp.config.schema.fields import Section, declared_keys
from coordexp.config.schema.model import Model
from coordexp.config.schema.objective import Custom, Objective
from coordexp.config.schema.tracking import Tracking
from coordexp.config.schema.training import Training
from coordexp.config.trees import merged


class ExperimentConfig(Section):
    """A whole experiment, or one run of it.

    Its groups are validated with it, so that a valid experiment has valid runs only.
    """

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

    _groups: dict[str, "ExperimentConfig"] = PrivateAttr(default_factory=dict[str, "ExperimentConfig"])

    @property
    def groups(self) -> Mapping[str, "ExperimentConfig"]:
        """The resolved configuration of each group of ``ablation.groups``, by its name."""
        return self._groups

    @property
    def global_batch_size(self) -> int:
        """The images of one optimizer step, over all microbatches and workers."""
        training = self.training
        return training.per_device_batch_size * training.gradient_accumulation_steps * self.cluster.num_workers

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Return a copy with other sections; it is validated again, so that its groups follow."""
        return type(self).model_validate({**dict(self), **(update or {})})

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

    @model_validator(mode="after")
    def _groups_are_valid(self) -> "ExperimentConfig":
        base, wrong = self.model_dump(mode="json"), list[InitErrorDetails]()
        for name, overlay in self.ablation.model_dump()["groups"].items():  # not as JSON, where a NaN would be null
            run = merged(base, overlay)
            run = merged(run, {"experiment": {"group": name}}) | {"ablation": {**base["ablation"], "groups": {}}}
            try:
                self._groups[name] = ExperimentConfig.model_validate(run)
            except ValidationError as error:
                wrong += [_within_group(name, detail) for detail in error.errors(include_url=False)]
        if wrong:
            raise ValidationError.from_exception_data("ExperimentConfig", wrong)
        return self


def _within_group(name: str, detail: ErrorDetails) -> InitErrorDetails:
    """Return an error of a group's configuration as one of the experiment that holds the group."""
    loc = ("ablation", "groups", name, *detail["loc"])
    return {"type": detail["type"], "loc": loc, "input": detail["input"], "ctx": detail.get("ctx", {})}


KEYS = declared_keys(ExperimentConfig)
"""Every key of a configuration by its dotted name; a key that declares no role stops the import here."""
