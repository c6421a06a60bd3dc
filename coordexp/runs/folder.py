"""Where an experiment and its runs keep their files: every name is written here once, and nowhere else."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from coordexp.config.schema import RunConfig
from coordexp.files import sha256_of_text
from coordexp.metrics import BoxKind, Decoding

_STEP = "step_"
_EVALUATIONS = "eval"
_TRIAL = re.compile(r".+\.t\d{3,}-s\d+")
GENERATED_BY = "generated_by.json"
"""Lies beside detections: in a run's folder, in published results, and beside files from elsewhere."""


@dataclass(frozen=True)
class _Folder:
    path: Path


class Within:
    """A file or folder of this name, as an attribute of the folder that it lies in."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: _Folder, owner: type[object]) -> Path:
        return folder.path / self.name


class DecodingFolder(_Folder):
    """The files of one evaluation under one decoding."""

    objects = Within("objects.jsonl")  # all parsed objects, one image a line
    answers = Within("answers.jsonl")  # the tokens of every answer, one image a line
    unknown = Within("unknown.json")  # descriptions that name no category, with their counts
    analysis = Within("analysis.json")  # details behind the numbers: parts of AP, histograms, calibration
    distributions = Within("distributions.json")  # whole coord distributions of some objects
    generated_by = Within(GENERATED_BY)  # the engine that wrote the answers

    def detections(self, box: BoxKind) -> Path:
        return self.path / f"detections.{box}.json"


class EvaluationFolder(_Folder):
    """One evaluation of a checkpoint."""

    metrics = Within("metrics.json")  # by name; the verb `evaluate` writes it, a run has its metrics in its rows
    data = Within("data")  # the set that the verb `evaluate` reads; a run reads the set of its experiment
    hardware = Within("hardware.json")  # name of the hardware that generated the answers

    def decoding(self, decoding: Decoding) -> DecodingFolder:
        return DecodingFolder(self.path / decoding)


class CheckpointFolder(_Folder):
    """One checkpoint. It is complete if its commit marker is there and the checksums in it hold.

    The other files are Hugging Face's: ``adapter_model.safetensors`` with ``adapter_config.json``, which include the
    coord-offset adapter (with full tuning ``model.safetensors``), ``optimizer.pt``, ``scheduler.pt``,
    ``trainer_state.json`` and a ``rng_state.pth`` for each rank. DeepSpeed keeps the optimizer in ``global_step*/``.
    """

    commit_marker = Within("commit.json")  # written last, with a checksum of every other file
    training_state = Within("training_state.json")  # what training knows besides weights, optimizer and random states

    def averages(self, rank: int) -> Path:
        return self.path / f"averages_{rank:05d}.safetensors"

    def all_averages(self) -> dict[int, Path]:
        return {int(path.stem[-5:]): path for path in sorted(self.path.glob("averages_*.safetensors"))}


class RunFolder(_Folder):
    """Everything that one run writes. ``RunFolder(Path())`` gives paths within any run, as its artifacts have them."""

    config = Within("config.yaml")  # the resolved configuration of this run alone
    fingerprint = Within("fingerprint.json")  # what decides the run's results, as hashes
    param_groups = Within("param_groups.json")  # the optimizer's groups
    status = Within("status.json")  # where the run stands
    stop = Within("stop.json")  # a request to stop this run; the experiment's own asks all runs
    recorded = Within("recorded.json")  # which tracking server has the whole run
    metrics = Within("metrics.jsonl")  # committed rows of metrics
    progress_log = Within("progress.log")  # progress as lines for a person
    live = Within("live.json")  # what the run does now; replaced each second, and only a view is lost without it
    events = Within("events.jsonl")  # what happened to the run, as records
    error_log = Within("error.log")  # tracebacks of failures
    merged = Within("merged")  # the merged checkpoint of a finished run
    checkpoints = Within("checkpoints")
    scratch = Within(".scratch")  # checkpoints that are not whole yet; on the same disk, whose room was checked
    lock = Within(".attempt.lock")  # held by the one process that writes the run

    @staticmethod
    def of(config: RunConfig) -> "RunFolder":
        return ExperimentFolder.of(config).run(config.experiment.group, config.experiment.seed)

    @property
    def name(self) -> str:
        """``GROUP-sSEED``, unique within the experiment."""
        return self.path.name

    @property
    def experiment(self) -> "ExperimentFolder":
        return ExperimentFolder(self.path.parent)

    def checkpoint(self, step: int) -> CheckpointFolder:
        return CheckpointFolder(self.checkpoints / step_name(step))

    def all_checkpoints(self) -> list[CheckpointFolder]:
        """Return all checkpoints, committed or not, oldest first."""
        return [CheckpointFolder(path) for _, path in sorted(_by_step(self.checkpoints).items())]

    def evaluation(self, step_or_name: int | str) -> EvaluationFolder:
        """Return the evaluation after so many steps, or the one of that name: ``final`` is on every image."""
        name = step_or_name if isinstance(step_or_name, str) else step_name(step_or_name)
        return EvaluationFolder(self.path / _EVALUATIONS / name)

    def evaluations(self) -> dict[int, EvaluationFolder]:
        """Return the evaluations during training by their steps, in order."""
        folders = _by_step(self.path / _EVALUATIONS)
        return {step: EvaluationFolder(path) for step, path in sorted(folders.items())}


class TuningFolder(_Folder):
    """What the tuning of an ablation's groups keeps beside the runs of its trials."""

    record = Within("tuning.json")  # every trial and what was chosen, once that is decided for each group

    def journal(self, group: str) -> Path:
        """Return the trials of a group, as Optuna keeps them."""
        return self.path / f"trials-{group}.jsonl"

    def group_file(self, group: str) -> Path:
        """Return the file of a group with its chosen values, to copy beside another experiment."""
        return self.path / f"{group}_tuned.yaml"


class ExperimentFolder(_Folder):
    """One experiment: what all of its runs share, and the folders of the runs."""

    record = Within("experiment.json")  # the configuration that the name is bound to
    sweep_journal = Within("trials.jsonl")  # the trials of a sweep, as Optuna keeps them
    data = Within("data")  # the set, and generated pictures
    codec_ceiling = Within("codec_ceiling.json")  # AP of the ground truth itself after encoding and decoding
    hashes = Within("hashes.json")  # of the base's files, so that large ones are hashed only once
    report = Within("report")  # tables, plots and the page
    inspected = Within("inspect")  # pictures that the verb `inspect` has drawn
    ray_records = Within(".tune")  # what Ray Tune and Ray Train keep for themselves
    stop = Within("stop.json")  # a request to stop all runs

    @staticmethod
    def of(config: RunConfig) -> "ExperimentFolder":
        return ExperimentFolder(config.experiment.runs_dir / config.experiment.name)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def data_hashes(self) -> Path:
        """Folder of the hashes of large image folders, shared by all experiments beside this one."""
        return self.path.with_name(".hashes")

    @property
    def lock(self) -> Path:
        """The lock of the one command that runs the experiment. It is not in the folder, which ``--fresh`` moves."""
        return self.path.with_name(f".{self.path.name}.lock")

    @property
    def lock_holder(self) -> Path:
        return self.path.with_name(f".{self.path.name}.holder.json")

    def run(self, group: str, seed: int) -> RunFolder:
        return RunFolder(self.path / f"{group}-s{seed}")

    @property
    def tuning(self) -> TuningFolder:
        return TuningFolder(self.path / "tuning")

    def begun_runs(self) -> list[RunFolder]:
        """Return every run that has begun, trials among them."""
        return [RunFolder(path.parent) for path in sorted(self.path.glob("*/status.json"))]

    def begun_like(self, name: str) -> list[RunFolder]:
        """Return the begun runs that stand beside one: of trials of a tuning the others, of a run the runs."""
        return [run for run in self.begun_runs() if self.is_trial(run.name) == self.is_trial(name)]

    def is_trial(self, name: str) -> bool:
        """Return whether a run is a trial of the groups' tuning, by its name ``GROUP.t000-sSEED``."""
        return _TRIAL.fullmatch(name) is not None and self.tuning.path.is_dir()

    def base(self, config: RunConfig) -> Path:
        """Return the checkpoint that runs with this model and structure start from.

        Its vocabulary has the coord tokens, except for a text arm, which needs none.
        """
        model = config.model
        kind = "text" if config.text_arm else config.data.structure
        tag = sha256_of_text(json.dumps([model.path, model.revision, model.vocab_init, model.dtype]))[:8]
        return self.path / f"base-{kind}-{tag}"


def experiments_in(runs_dir: Path) -> list[ExperimentFolder]:
    return [ExperimentFolder(path.parent) for path in sorted(runs_dir.glob("*/experiment.json"))]


def step_name(step: int) -> str:
    return f"{_STEP}{step:06d}"


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix(_STEP))


def _by_step(directory: Path) -> dict[int, Path]:
    """Return the folders ``step_NUMBER`` of a directory by their numbers."""
    folders: dict[int, Path] = {}
    for path in directory.glob(f"{_STEP}*"):
        if path.name.removeprefix(_STEP).isdecimal() and path.is_dir():
            folders[step_of(path)] = path
    return folders
