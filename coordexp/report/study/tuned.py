"""What the tuning of the groups came to, as the experiment's folder or MLflow has it, and how the verdict begins."""

from collections.abc import Iterable
from pathlib import Path

from coordexp.config.schema.search import Number, Parameter
from coordexp.errors import counted
from coordexp.report.records.artifacts import Artifacts
from coordexp.report.records.data import ExperimentData
from coordexp.runs.folder import ExperimentFolder
from coordexp.search.record import TuningRecord, read_record

RECORD = ExperimentFolder(Path()).tuning.record
_NEAR_AN_END = 0.1  # of a range, from which on values near its end were hardly tried


def tuning_of(data: ExperimentData, artifacts: Artifacts) -> TuningRecord | None:
    """Return the tuning of the groups of a study; None where they were not tuned, or by different plans.

    Raises:
        DataError: if the record cannot be read.
    """
    paths: dict[Path, None] = {}
    for run in data.trained:
        path = artifacts.of_experiment(run, RECORD)
        if path is not None:
            paths[path] = None
    if len(paths) != 1:
        return None
    (path,) = paths
    return read_record(path)


def tuning_lead(record: TuningRecord, groups: Iterable[str]) -> str:
    """Return the first words of the verdict: which groups were tuned, and by how much."""
    shown = list(groups)
    tuned = [group for group in shown if group in record.groups]
    untuned = [group for group in shown if group not in record.groups]
    budget = f"{counted(record.num_trials, 'trial')} of {counted(record.num_steps, 'step')}"
    if not tuned:
        return ""
    if not untuned:
        return f"Each group tuned by {budget}."
    return f"Tuned by {budget}: {', '.join(tuned)}; not tuned: {', '.join(untuned)}."


def edge_of(parameter: Parameter, value: Number) -> str:
    """Say at which end of what was searched a chosen value lies: "lower end", "upper end", "outside", or ""."""
    low, high = parameter.ends
    if low == high:
        return ""
    if value < low or value > high:
        return "outside"
    margin = 0.0 if parameter.values is not None else _NEAR_AN_END
    place = parameter.place_of(value)
    if place <= margin:
        return "lower end"
    return "upper end" if place >= 1 - margin else ""
