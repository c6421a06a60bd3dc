"""The two objects that loading makes: an experiment, and the complete configuration of each of its runs."""

import math
from collections.abc import Iterable, Mapping
from typing import Self, cast

from pydantic import PrivateAttr, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from coordexp.config.schema.cluster import Cluster
from coordexp.config.schema.data import Data
from coordexp.config.schema.evaluation import Evaluation
from coordexp.config.schema.experiment import Ablation, Experiment
from coordexp.config.schema.fields import Section, declared_keys
from coordexp.config.schema.model import Model
from coordexp.config.schema.objective import Custom, Objective, TermWeight
from coordexp.config.schema.tracking import Tracking
from coordexp.config.schema.training import Training
from coordexp.config.trees import Tree, merged, nested, value_at
from coordexp.errors import ConfigError, nearest_of
from coordexp.metrics import BoxKind

_DISTRIBUTION = "custom.coord_soft_ce_w1.enabled"


class RunConfig(Section):
    """Every key of one run: one group, one seed.

    ``ablation`` has no groups and only this seed, so what other groups do cannot change a run. Workers get it as JSON
    and look nothing up.
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
        """The weight of each term of the specification that looks at coordinates, by its name.

        Group A is plain cross-entropy by definition: if no other term of positive weight was asked for, a positive
        ``lambda_coord_ce`` does not scale it.
        """
        objective = self.objective
        distribution = self.custom.coord_soft_ce_w1
        has_extra_term = any(term.weight > 0 for term in objective.extra.values())
        has_other_term = objective.use_geom_loss or distribution.enabled or has_extra_term
        lambda_coord_ce = objective.lambda_coord_ce if has_other_term else float(objective.lambda_coord_ce > 0)
        coord_ce = {
            "objective.use_coord_ce": objective.use_coord_ce,
            "objective.lambda_coord_ce": lambda_coord_ce,
        }
        geometry = {
            "objective.use_geom_loss": objective.use_geom_loss,
            "objective.lambda_coord": objective.lambda_coord,
        }
        switch = {"custom.coord_soft_ce_w1.enabled": distribution.enabled}
        return {
            "coord_ce": TermWeight(coord_ce),
            "box_l1": TermWeight({**geometry, "objective.alpha_l1": objective.alpha_l1}),
            "box_giou": TermWeight({**geometry, "objective.beta_giou": objective.beta_giou}),
            "soft_ce": TermWeight({**switch, "custom.coord_soft_ce_w1.soft_ce_weight": distribution.soft_ce_weight}),
            "w1": TermWeight({**switch, "custom.coord_soft_ce_w1.w1_weight": distribution.w1_weight}),
            "gate": TermWeight({**switch, "custom.coord_soft_ce_w1.gate_weight": distribution.gate_weight}),
        }

    def unsupervised(self, blind: Iterable[str] = ()) -> str:
        """Return the sentence that refuses a run without a term of positive weight that sees a coordinate.

        Args:
            blind: names of further terms of positive weight, which see none.
        """
        weights = list(self.term_weights.values())
        if self.text_arm:
            weights = [self.term_weights["coord_ce"]]
        zeros = [weight.why_zero for weight in weights if weight.why_zero is not None]
        zeros += [f"objective.extra.{name} is 0" for name, term in self.objective.extra.items() if not term.weight]
        # Weights of 0 stand before switches that are off.
        reasons = sorted(dict.fromkeys(zeros), key=lambda zero: zero.endswith("false"))
        reasons += [f"objective.extra.{name} sees no coordinate" for name in blind]
        arm = "a text arm" if self.text_arm else "custom.coord_tokens.enabled"
        return f"{arm} needs a coordinate term of positive weight, but {', '.join(reasons)}; set one of them"

    @property
    def reading(self) -> BoxKind:
        """Which boxes of this run are its headline: as ``evaluation.reading`` says of its group, or by its losses.

        Cross-entropy trains the most likely bin, every other term the whole distribution. Digits have no mean.
        """
        reading_of_group = self.evaluation.reading.get(self.experiment.group)
        if reading_of_group is not None:
            return reading_of_group
        other_weights = [weight.value for name, weight in self.term_weights.items() if name != "coord_ce"]
        other_weights += [term.weight for term in self.objective.extra.values()]
        return "expected" if any(other_weights) and not self.text_arm else "argmax"

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
        """Whether runs keep to algorithms that repeat every bit: as asked, by default only without GPUs."""
        if self.training.deterministic is None:
            return self.cluster.gpus_per_worker == 0
        return self.training.deterministic

    def with_steps(self, num_images: int) -> Self:
        """Return the run with ``training.max_steps`` in place of ``training.epochs``, for this many training images."""
        epochs = self.training.epochs
        if epochs is None:
            return self
        steps_an_epoch = math.ceil(num_images / self.global_batch_size)
        # Rounded first: 0.7 x 10 is a little more than 7 in floats, and would be 8 steps.
        steps = max(1, math.ceil(round(epochs * steps_an_epoch, 6)))
        training = self.training.model_copy(update={"max_steps": steps, "epochs": None})
        return self.model_validate({**dict(self), "training": training})

    @model_validator(mode="before")
    @classmethod
    def _distribution_losses_stand_alone(cls, data: object) -> object:
        """Turn off cross-entropy on coord tokens if the distribution losses are on and ``use_coord_ce`` is not set.

        A file with only their switch is then what specification 003 means by it. The same holds for a group.
        """
        if not isinstance(data, dict):
            return data
        tree = cast(Tree, data)
        objective = tree.get("objective", {})
        if not isinstance(objective, dict) or "use_coord_ce" in objective:
            return tree
        custom = cast(object, tree.get("custom"))
        is_on = value_at(tree, _DISTRIBUTION) is True
        if isinstance(custom, Custom):  # The values are validated already, as in :meth:`with_steps`.
            is_on = custom.coord_soft_ce_w1.enabled
        if is_on:
            tree = merged(tree, {"objective": {"use_coord_ce": False}})

        groups = value_at(tree, "ablation.groups")
        if not isinstance(groups, dict):
            return tree
        for name, overlay in groups.items():
            is_on_in_group = value_at(overlay, _DISTRIBUTION)
            objective_of_group = value_at(overlay, "objective")
            is_set = isinstance(objective_of_group, dict) and "use_coord_ce" in objective_of_group
            if isinstance(is_on_in_group, bool) and is_on_in_group != is_on and not is_set:
                path = ["ablation", "groups", name, "objective", "use_coord_ce"]
                tree = merged(tree, nested(path, not is_on_in_group))
        return tree

    @model_validator(mode="after")
    def _keys_agree(self) -> Self:
        """Refuse keys that contradict each other, in a run and in what all runs of an experiment share."""
        switches = {
            "objective.use_coordexp_loss": self.objective.use_coordexp_loss,
            "custom.coord_soft_ce_w1.enabled": self.custom.coord_soft_ce_w1.enabled,
        }
        switched_on = [key for key, is_on in switches.items() if is_on]
        if self.text_arm and switched_on:
            raise ValueError(f"{', '.join(switched_on)} would have no effect without custom.coord_tokens.enabled: true")
        if self.text_arm and self.data.structure == "spec":
            raise ValueError(
                "data.structure: spec adds two tokens, and custom.coord_tokens.enabled: false adds none; use "
                "data.structure: native"
            )
        bucket_size = self.data.bucket_size
        if bucket_size is not None and not self.data.length_buckets:
            raise ValueError(f"data.bucket_size: {bucket_size} has no effect without data.length_buckets: true")
        if bucket_size is not None and self.global_batch_size % bucket_size:
            raise ValueError(
                f"data.bucket_size: {bucket_size} does not divide a step of {self.global_batch_size} images"
            )
        if self.trains_offset and self.training.tuning == "full":
            raise ValueError("custom.coord_offset needs frozen tables; training.tuning: full trains them (choose one)")
        return self

    @model_validator(mode="after")
    def _can_be_run(self) -> Self:
        """Refuse a run without a coordinate term of positive weight, or with a reading that it does not have.

        Whether a further term sees coordinates is checked later, when the terms are loaded.
        """
        weights = [weight.value for weight in self.term_weights.values()]
        if not any(weights) and not any(term.weight for term in self.objective.extra.values()):
            raise ValueError(self.unsupervised())
        if self.text_arm and self.reading != "argmax":
            raise ValueError(
                f"evaluation.reading.{self.experiment.group}: got expected, but a text arm "
                "(custom.coord_tokens.enabled: false) writes numbers, which have one reading; leave it out, or argmax"
            )
        return self


class ExperimentConfig(RunConfig):
    """A whole experiment: what its runs share, and the runs, validated with it."""

    _groups: dict[str, RunConfig] = PrivateAttr(default_factory=dict[str, RunConfig])
    _runs: dict[str, RunConfig] = PrivateAttr(default_factory=dict[str, RunConfig])

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups in order; without ``ablation.groups`` the experiment itself is the one group."""
        return tuple(self._groups)

    @property
    def runs(self) -> Mapping[str, RunConfig]:
        """Every run by its name, ``A-s0``; whole seeds first, so that an early stop leaves a balanced comparison."""
        return self._runs

    def run(self, group: str, seed: int) -> RunConfig:
        """Return the run of a group with a seed, which may be one that ``ablation.seeds`` does not list."""
        if group not in self._groups:
            raise ConfigError(f"there is no group {group!r}; {nearest_of(group, self._groups)}")
        run = self._groups[group]
        return run.model_copy(
            update={
                "experiment": run.experiment.model_copy(update={"seed": seed}),
                "ablation": run.ablation.model_copy(update={"seeds": (seed,)}),
            }
        )

    def reduced(self, group: str, seed: int) -> "ExperimentConfig":
        """Return the experiment with one of its runs; what all runs share stays as it is."""
        groups = {name: overlay for name, overlay in self.ablation.groups.items() if name == group}
        experiment = self.experiment.model_copy(update={"group": group, "seed": seed})
        ablation = self.run(group, seed).ablation.model_copy(update={"groups": groups})
        return self.model_validate({**dict(self), "experiment": experiment, "ablation": ablation})

    @model_validator(mode="after")
    def _can_be_run(self) -> Self:
        """Make and validate the runs, instead of a run's own check: the keys that runs share are no run."""
        shared = self.model_dump(mode="json")
        overlays = self.ablation.model_dump()["groups"]  # Not as JSON, where a NaN would be null.
        errors: list[InitErrorDetails] = []
        for group, overlay in (overlays or {self.experiment.group: {}}).items():
            tree = merged(merged(shared, overlay), {"experiment": {"group": group}})
            tree["ablation"] = self.ablation.of_run(group).model_dump(mode="json")
            try:
                self._groups[group] = RunConfig.model_validate(tree)
            except ValidationError as error:
                errors += _errors_below(error, ("ablation", "groups", group) if overlays else ())
        if errors:
            raise ValidationError.from_exception_data("ExperimentConfig", errors)
        for seed in self.ablation.seeds:
            for group in self._groups:
                self._runs[f"{group}-s{seed}"] = self.run(group, seed)
        return self


def _errors_below(error: ValidationError, place: tuple[str, ...]) -> list[InitErrorDetails]:
    """Return the errors of a run as errors of the experiment, their places counted from its top."""
    return [
        {
            "type": detail["type"],
            "loc": (*place, *detail["loc"]),
            "input": detail["input"],
            "ctx": detail.get("ctx", {}),
        }
        for detail in error.errors(include_url=False)
    ]


KEYS = declared_keys(ExperimentConfig)
"""Every key of a configuration by its dotted name; a key that declares no role stops the import here."""
