"""What the tuning of an ablation's groups came to: a file in the experiment's folder, and beside it in MLflow."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from coordexp.config.schema.fields import Section
from coordexp.config.schema.search import Method, Number, Parameter
from coordexp.files import read_model, write_json
from coordexp.metrics import BoxKind

LEARNED_AP = 0.01
"""An AP below it is that of a detector that has found nothing yet."""

State = Literal["waiting", "running", "finished", "failed", "stopped", "pruned"]


class TriedPoint(Section):
    """One trial: a point, and what a short run at it has reached on the tuning split."""

    name: str
    point: Mapping[str, Number]
    state: State
    step: int
    ap: float | None  # of a finished trial on the whole tuning split, of another the last one on a subset of it
    message: str = ""  # why it failed or was pruned


class TunedGroup(Section):
    """The trials of a group, and which of them was chosen."""

    reading: BoxKind  # how the boxes of its trials were read
    space: Mapping[str, Parameter]  # what was searched
    trials: tuple[TriedPoint, ...]  # the first one has the group's own values
    chosen: str  # the name of a trial

    @property
    def best(self) -> TriedPoint:
        return next(trial for trial in self.trials if trial.name == self.chosen)

    @property
    def own_values(self) -> TriedPoint:
        return self.trials[0]

    @property
    def has_learned(self) -> bool:
        """Whether a trial has an AP at all; among those of 0 the first one is chosen, which says nothing."""
        return any(trial.ap is not None and trial.ap >= LEARNED_AP for trial in self.trials)

    @property
    def failed(self) -> tuple[TriedPoint, ...]:
        return tuple(trial for trial in self.trials if trial.state == "failed")


class TuningRecord(Section):
    """The tuning of all groups, once it is decided for each of them."""

    method: Method
    num_trials: int  # of each group
    num_steps: int  # of each trial
    seed: int  # of the draws and of the trials
    num_train: int  # training images that trials learned from
    num_val: int  # other training images, that they were judged on
    num_excluded: int  # training images left out, since the validation split holds the same picture
    unit_by: str | None  # whole units are on one side of that split
    split_hash: str
    groups: Mapping[str, TunedGroup]

    def write(self, path: Path) -> None:
        write_json(path, self.model_dump(mode="json"), indent=1)


def read_record(path: Path) -> TuningRecord:
    """Read what :meth:`TuningRecord.write` wrote, or raise a DataError that names the file."""
    return read_model(TuningRecord, path, what="the record of a tuning")
