"""The whole experiment as one frozen, validated object; the only truth after loading."""

import math
from collections.abc import Iterable, Mapping
from typing import Self, cast

from pydantic import PrivateAttr, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails

from coordexp.config.schema.ablation import Ablation
from coordexp.config.schema.cluster import Cluster
from coordexp.config.schema.data import Data
from coordexp.config.schema.evaluation import Evaluation
from coordexp.config.schema.experiment import Experiment
from coordexp.config.schema.fields import Section, declared_keys
from coordexp.config.schema.model import Model
from coordexp.config.schema.objective import Custom, Objective, TermWeight, term_weights
from coordexp.config.schema.tracking import Tracking
from coordexp.config.schema.training import Training
from coordexp.config.trees import Tree, merged, nested, value_at
from coordexp.files import JsonValue
from coordexp.metrics import BoxKind

_DISTRIBUTION = "custom.coord_soft_ce_w1.enabled"
_COORD_CE_OFF: Tree = {"objective": {"use_coord_ce": False}}
OFFSET_OF_TEXT_ARM = (
    "custom.coord_tokens.enabled: false writes coordinates as digits, and custom.coord_offset.enabled: true trains "
    "offsets of coord tokens, which are then not there; leave out one of them"
)


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
    def text_arm(self) -> bool:
        """Whether coordinates are written as the digits of their bins, and no coord token is in the model."""
        return not self.custom.coord_tokens.enabled

    @property
    def trains_offset(self) -> bool:
        """Whether coord offsets are trained: never in a text arm, whatever it inherits."""
        return self.custom.coord_tokens.enabled and self.custom.coord_offset.enabled

    @property
    def term_weights(self) -> Mapping[str, TermWeight]:
        """The weight of each coordinate term of the specification, with the keys that make it."""
        return term_weights(self.objective, self.custom.coord_soft_ce_w1)

    def unsupervised(self, blind: Iterable[str] = ()) -> str:
        """Return the sentence that refuses a run in which no term of positive weight sees a coordinate.

        Args:
            blind: further terms of positive weight that see none.
        """
        weights = [self.term_weights["coord_ce"]] if self.text_arm else self.term_weights.values()
        zeros = [found for weight in weights if (found := weight.why_zero)]
        zeros += [f"objective.extra.{name} is 0" for name, term in self.objective.extra.items() if not term.weight]
        why = sorted(dict.fromkeys(zeros), key=lambda zero: zero.endswith("false"))  # the weights first
        why += [f"objective.extra.{name} sees no coordinate" for name in blind]
        arm = "a text arm" if self.text_arm else "custom.coord_tokens.enabled"
        return f"{arm} needs a coordinate term of positive weight, but {', '.join(why)}; set one of them"

    @property
    def reading(self) -> BoxKind:
        """Which boxes of this run are its headline: as ``evaluation.reading`` says of its group, or by its losses.

        Cross-entropy trains the most likely bin, every other term the whole distribution. Digits have no mean.
        """
        own = self.evaluation.reading.get(self.experiment.group)
        others = [weight.value for name, weight in self.term_weights.items() if name != "coord_ce"]
        others += [term.weight for term in self.objective.extra.values()]
        return own or ("expected" if any(others) and not self.text_arm else "argmax")

    @property
    def global_batch_size(self) -> int:
        """The images of one optimizer step, over all microbatches and workers."""
        training = self.training
        return training.per_device_batch_size * training.gradient_accumulation_steps * self.cluster.num_workers

    @property
    def threads_of_worker(self) -> int:
        """CPU threads of a worker: those of ``training.num_threads``, or as many as it has CPUs."""
        return self.training.num_threads or math.ceil(self.cluster.cpus_per_worker)

    @property
    def is_deterministic(self) -> bool:
        """Whether runs keep to algorithms that repeat every bit, as ``training.deterministic`` says or leaves open."""
        asked = self.training.deterministic
        return self.cluster.gpus_per_worker == 0 if asked is None else asked

    def with_steps(self, num_images: int) -> Self:
        """Return the run with ``training.max_steps`` in place of ``training.epochs``, for so many training images."""
        epochs = self.training.epochs
        if epochs is None:
            return self
        steps_an_epoch = math.ceil(num_images / self.global_batch_size)
        steps = max(1, math.ceil(round(epochs * steps_an_epoch, 6)))  # 0.7 x 10 is a little more than 7 in floats
        return self.model_copy(
            update={"training": self.training.model_copy(update={"max_steps": steps, "epochs": None})}
        )

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Return a copy with other sections; it is validated again, so that its groups follow."""
        return type(self).model_validate({**dict(self), **(update or {})})

    @model_validator(mode="before")
    @classmethod
    def _distribution_losses_stand_alone(cls, data: object) -> object:
        return _with_distribution_alone(cast(Tree, data)) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _coordinates_are_supervised(self) -> "ExperimentConfig":
        # Where there are groups, only they are runs. A further term says of itself what it sees, where it is known.
        weights = [weight.value for weight in self.term_weights.values()]
        weights += [term.weight for term in self.objective.extra.values()]
        if not self.ablation.groups and not any(weights):
            raise ValueError(self.unsupervised())
        return self

    @model_validator(mode="after")
    def _coordinate_switches_need_coord_tokens(self) -> "ExperimentConfig":
        switches = {
            "objective.use_coordexp_loss": self.objective.use_coordexp_loss,
            "custom.coord_soft_ce_w1.enabled": self.custom.coord_soft_ce_w1.enabled,
        }
        switched_on = [key for key, on in switches.items() if on]
        if switched_on and self.text_arm:
            raise ValueError(f"{', '.join(switched_on)} would have no effect without custom.coord_tokens.enabled: true")
        return self

    @model_validator(mode="after")
    def _a_text_arm_adds_no_token(self) -> "ExperimentConfig":
        if self.text_arm and self.data.structure == "spec":
            raise ValueError(
                "data.structure: spec adds two tokens, and custom.coord_tokens.enabled: false adds none; use "
                "data.structure: native"
            )
        return self

    @model_validator(mode="after")
    def _a_text_arm_has_one_reading(self) -> "ExperimentConfig":
        if self.text_arm and not self.ablation.groups and self.reading != "argmax":
            raise ValueError(
                f"evaluation.reading.{self.experiment.group}: got expected, but a text arm "
                "(custom.coord_tokens.enabled: false) writes numbers, which have one reading; leave it out, or argmax"
            )
        return self

    @model_validator(mode="after")
    def _buckets_fill_a_step(self) -> "ExperimentConfig":
        size, step = self.data.bucket_size, self.global_batch_size
        if size is not None and not self.data.length_buckets:
            raise ValueError(f"data.bucket_size: {size} has no effect without data.length_buckets: true")
        if size is not None and step % size:
            raise ValueError(f"data.bucket_size: {size} does not divide a step of {step} images")
        return self

    @model_validator(mode="after")
    def _offset_needs_frozen_tables(self) -> "ExperimentConfig":
        if self.trains_offset and self.training.tuning == "full":
            raise ValueError("custom.coord_offset needs frozen tables; training.tuning: full trains them (choose one)")
        return self

    @model_validator(mode="after")
    def _groups_are_valid(self) -> "ExperimentConfig":
        base, wrong = self.model_dump(mode="json"), list[InitErrorDetails]()
        for name, overlay in self.ablation.model_dump()["groups"].items():  # not as JSON, where a NaN would be null
            if contradicts_text_arm(overlay):
                wrong.append(_of_text_arm(name, overlay))
                continue
            run = merged(base, overlay)
            run = merged(run, {"experiment": {"group": name}}) | {"ablation": {**base["ablation"], "groups": {}}}
            try:
                self._groups[name] = ExperimentConfig.model_validate(run)
            except ValidationError as error:
                wrong += [_within_group(name, detail) for detail in error.errors(include_url=False)]
        if wrong:
            raise ValidationError.from_exception_data("ExperimentConfig", wrong)
        return self


def _with_distribution_alone(tree: Tree) -> Tree:
    """Switch cross-entropy on coord tokens off where the distribution losses are on and nobody says ``use_coord_ce``.

    So that a file with only their switch is what specification 003 means by it; the same holds for a group.
    """
    objective, custom = tree.get("objective", {}), cast(object, tree.get("custom"))
    if not isinstance(objective, dict) or "use_coord_ce" in objective:
        return tree
    is_on = custom.coord_soft_ce_w1.enabled if isinstance(custom, Custom) else value_at(tree, _DISTRIBUTION) is True
    if is_on:
        tree = merged(tree, _COORD_CE_OFF)
    groups = value_at(tree, "ablation.groups")
    for name, overlay in groups.items() if isinstance(groups, dict) else ():
        own, said = value_at(overlay, _DISTRIBUTION), value_at(overlay, "objective")
        if isinstance(own, bool) and own != is_on and "use_coord_ce" not in (said if isinstance(said, dict) else {}):
            tree = merged(tree, nested(["ablation", "groups", name, "objective", "use_coord_ce"], not own))
    return tree


def contradicts_text_arm(tree: JsonValue) -> bool:
    """Say whether a group or a command line spells out a text arm and coord offsets, which such an arm never trains."""
    return (
        value_at(tree, "custom.coord_tokens.enabled") is False and value_at(tree, "custom.coord_offset.enabled") is True
    )


def _of_text_arm(name: str, overlay: object) -> InitErrorDetails:
    loc = ("ablation", "groups", name)
    return {"type": "value_error", "loc": loc, "input": overlay, "ctx": {"error": ValueError(OFFSET_OF_TEXT_ARM)}}


def _within_group(name: str, detail: ErrorDetails) -> InitErrorDetails:
    """Return an error of a group's configuration as one of the experiment that holds the group."""
    loc = ("ablation", "groups", name, *detail["loc"])
    return {"type": detail["type"], "loc": loc, "input": detail["input"], "ctx": detail.get("ctx", {})}


KEYS = declared_keys(ExperimentConfig)
"""Every key of a configuration by its dotted name; a key that declares no role stops the import here."""
