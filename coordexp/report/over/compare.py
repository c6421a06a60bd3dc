"""Experiments that differ in one key -> the lead of each group at each value, and how leads change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from coordexp.data.sets.image_facts import read_image_facts
from coordexp.data.units import UnitNames
from coordexp.errors import ComparisonError, ConfigError
from coordexp.metrics import BoxKind
from coordexp.report.over.experiments import OverExperiment, experiments_over
from coordexp.report.records.artifacts import Artifacts
from coordexp.report.records.data import ExperimentData, RunRecord, missing_runs
from coordexp.report.study.ground import find_annotations, find_facts, units_of
from coordexp.report.study.inputs import Detections, OnProgress, Settings, detections_of_runs
from coordexp.statistics.leads import Leads, compare_leads
from coordexp.statistics.readings import ReadingName

READINGS: Mapping[ReadingName, str] = {"own": "own reading", "argmax": "all by argmax"}
"""Each group as its loss suggests; and every group by the likeliest bins, so that no lead comes from the reading."""
REFERENCE = "A"
"""The group that the others are compared with, if every experiment has it: plain cross-entropy."""

FilesOver = Mapping[str, Detections]
"""Experiment, in the order of the key's values -> the detections of its groups."""


@dataclass(frozen=True)
class OverStudy:
    """Several experiments as one comparison."""

    key: str  # in which the experiments differ
    experiments: tuple[OverExperiment, ...]  # in the order of the key's values
    readings: Mapping[ReadingName, Leads]  # each group's own reading first
    files: Mapping[ReadingName, FilesOver]  # that the numbers follow from
    annotations: Path
    image_facts: Path | None = None  # units and tags of the images, where the experiments' set has them
    units: UnitNames | None = None
    missing: tuple[str, ...] = ()  # what is not here and why, a sentence each

    @property
    def title(self) -> str:
        """``amount_1, amount_4 over data.shapes.num_train``."""
        return f"{', '.join(experiment.name for experiment in self.experiments)} over {self.key}"

    @property
    def reference(self) -> str:
        return self.readings["own"].reference

    @property
    def groups(self) -> list[str]:
        """Every group but the reference, in the order in which the experiments have them."""
        names = dict.fromkeys(group for experiment in self.experiments for group in experiment.groups)
        return [name for name in names if name != self.reference]

    @property
    def boxes(self) -> dict[str, BoxKind]:
        """The boxes of each group's own reading."""
        return boxes_by_group(self.experiments)

    def label(self, experiment_name: str) -> str:
        """Return the value of the key in an experiment, as a table writes it."""
        return next(experiment.label for experiment in self.experiments if experiment.name == experiment_name)


def compare_over(
    key: str, data: ExperimentData, artifacts: Artifacts, settings: Settings, *, on_progress: OnProgress
) -> OverStudy:
    """Compare the leads of groups over the values of a key.

    Args:
        key: the dotted key in which the experiments differ.
        data: the runs of all experiments, as ``load_experiments`` reads them.
        artifacts: finds the files of runs.
        settings: how the comparison is made; it has no slices and draws no pictures.
        on_progress: called with (what, done, total).

    Raises:
        ConfigError: if the key does not tell the experiments apart, or a group is read otherwise in one of them.
        ComparisonError: if they differ in anything else, were evaluated on other images, share no group, or have left
            no detections.
    """
    experiments = experiments_over(key, data, artifacts, allow_differences=settings.allow_differences)
    boxes_by_group(experiments)
    annotations = find_annotations(data, artifacts)
    if annotations is None:
        raise ComparisonError(f"the annotations that {data.name} were evaluated on are not on this machine")
    facts_path = find_facts(data, artifacts, settings)
    image_facts = None if facts_path is None else read_image_facts(facts_path)
    units = units_of(settings, annotations, image_facts)
    missing = [*data.origin, *missing_runs(data)]
    files: dict[ReadingName, FilesOver] = {}
    for reading, head in READINGS.items():
        files[reading], sentences = _files_over(experiments, artifacts, reading, head)
        missing += sentences
    readings = leads_by_reading(annotations, files, reference_of(experiments), settings, units, on_progress=on_progress)
    return OverStudy(key, tuple(experiments), readings, files, annotations, facts_path, units, tuple(missing))


def leads_by_reading(
    annotations: Path,
    files: Mapping[ReadingName, FilesOver],
    reference: str,
    settings: Settings,
    units: UnitNames | None,
    *,
    on_progress: OnProgress,
) -> dict[ReadingName, Leads]:
    """Compare the leads under each reading, all on the same resamples.

    Args:
        annotations: the ground truth of all experiments.
        files: the detections under each reading.
        reference: the group that the others are compared with.
        settings: how many resamples, and their seed.
        units: what is drawn in the place of images.
        on_progress: called with (what, done, total).
    """
    return {
        reading: compare_leads(
            annotations,
            over,
            reference,
            resamples=settings.resamples,
            seed=settings.seed,
            units=units,
            on_progress=partial(on_progress, f"comparing leads, {READINGS[reading]}"),
        )
        for reading, over in files.items()
    }


def boxes_by_group(experiments: Sequence[OverExperiment]) -> dict[str, BoxKind]:
    """Return the boxes of each group's own reading, the same in all experiments.

    Raises:
        ConfigError: if a group is read otherwise in another experiment: a lead would then change by the reading.
    """
    first_runs: dict[str, tuple[OverExperiment, RunRecord]] = {}
    for experiment in experiments:
        for run in experiment.runs:
            first, first_run = first_runs.setdefault(run.group, (experiment, run))
            if first_run.reading != run.reading:
                raise ConfigError(
                    f"group {run.group} is read by {first_run.reading} in {first.name} and by {run.reading} in "
                    f"{experiment.name}; read it alike with --reading {experiment.name}/{run.group}={first_run.reading}"
                )
    return {group: run.reading for group, (_, run) in first_runs.items()}


def reference_of(experiments: Sequence[OverExperiment]) -> str:
    """Return the group that the others are compared with: A, or the first one that every experiment has.

    Raises:
        ComparisonError: if the experiments share no group.
    """
    shared = [group for group in experiments[0].groups if all(group in experiment.groups for experiment in experiments)]
    if not shared:
        names = ", ".join(experiment.name for experiment in experiments)
        raise ComparisonError(f"{names} have no group in common, so there is none to compare the others with")
    return REFERENCE if REFERENCE in shared else shared[0]


def _files_over(
    experiments: Sequence[OverExperiment], artifacts: Artifacts, reading: ReadingName, head: str
) -> tuple[FilesOver, list[str]]:
    """Return the detections of finished runs under a reading, and a sentence for each run without them."""
    files: dict[str, Detections] = {}
    sentences: list[str] = []
    for experiment in experiments:
        finished_runs = [run for run in experiment.runs if run.state == "finished"]
        detections, lacking = detections_of_runs(artifacts, finished_runs, reading)
        if detections:
            files[experiment.name] = detections
        sentences += [f"{run.name} of {experiment.name} has left no detections for: {head}." for run in lacking]
    return files, sentences
