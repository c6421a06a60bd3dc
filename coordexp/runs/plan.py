"""Groups x seeds -> the runs of an experiment, each with a key that recognises it when the same command comes again."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from coordexp.config.keys import identity
from coordexp.config.schema import ExperimentConfig, RunConfig
from coordexp.files import sha256_of_text
from coordexp.runs.folder import RunFolder
from coordexp.runs.status import RunStatus, read_status


@dataclass(frozen=True)
class RunPlan:
    """One run as it is planned: one group with one seed. Drivers and workers get it as JSON."""

    config: RunConfig  # every key of this run
    instance: str = ""  # id of the experiment's record; ``--fresh`` makes a new one

    @functools.cached_property
    def key(self) -> str:
        """``experiment/group/sSEED/hash``; plans with equal keys are the same run."""
        identity_text = self.instance + json.dumps(identity(self.config), sort_keys=True)
        return f"{self.config.experiment.name}/{self.group}/s{self.seed}/{sha256_of_text(identity_text)[:12]}"

    @property
    def group(self) -> str:
        return self.config.experiment.group

    @property
    def seed(self) -> int:
        return self.config.experiment.seed

    @property
    def folder(self) -> RunFolder:
        return RunFolder.of(self.config)

    @property
    def run_dir(self) -> Path:
        return self.folder.path

    @property
    def name(self) -> str:
        return self.folder.name

    def status(self) -> RunStatus:
        return read_status(self.run_dir)

    def has_begun(self) -> bool:
        return self.status().state != "waiting"

    def is_finished(self) -> bool:
        return self.status().state == "finished"

    def is_over(self) -> bool:
        """Return whether the run has ended for good: finished, or pruned by a search."""
        return self.status().state in ("finished", "pruned")

    def is_trial(self) -> bool:
        """Return whether the run is a trial of the groups' tuning."""
        return self.folder.experiment.is_trial(self.name)

    def is_done(self) -> bool:
        """Return whether the run needs no more work. A finished run whose merge failed does: the merge is repeated."""
        status = self.status()
        return status.state == "finished" and status.is_merged

    def to_json(self) -> str:
        return json.dumps({"instance": self.instance, "config": self.config.model_dump(mode="json")})

    @staticmethod
    def from_json(text: str) -> "RunPlan":
        values = json.loads(text)
        return RunPlan(RunConfig.model_validate(values["config"]), values["instance"])


def plan_runs(config: ExperimentConfig, *, instance: str = "") -> list[RunPlan]:
    """Return all runs, seed by seed, in the order in which they may begin; ``instance`` is that of :class:`RunPlan`."""
    return [RunPlan(run, instance) for run in config.runs.values()]
