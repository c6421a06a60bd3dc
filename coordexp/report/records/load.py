"""An experiment for a report, from two sources: MLflow, and the folders of its runs where they are on this machine.

:func:`from_mlflow` and :func:`from_folders` each return a :class:`RunRecord`; :func:`joined` makes one of both:

    field                       source             who wins, and why
    run_id, parent_id, key      MLflow             Only MLflow has them. A run that it does not have keeps "".
    annotations                 MLflow             Only MLflow has it. "": the hash is not compared.
    group, seed, experiment     both               They are equal: the records are joined by them.
    state, step, message        both               MLflow if it says finished: it then has the whole run. Else the
                                                   folder, which the run writes itself: MLflow hears of it later, or
                                                   never if it is away. A folder without a status says nothing.
    metrics, not_finite,        both               As the state, so that numbers belong to the step beside them. Of an
    curves                                         ended run MLflow has the last values as ``measured.json``; if that
                                                   cannot be had, the rows of the run's folder have them.
    params, run_dir, hardware,  both               As the state. MLflow has what the run sent; the folder has files.
    started, ended, commit
    reading                     both               As the state; then all runs of a group get that of its newest run.
    foreign, family             neither            ``foreign.py``, for rows that are files of detections.
    generator                   neither            ``write.with_generators``, from the files of the final evaluation.

A run that one source has alone is taken as it stands there. What MLflow has lost is named in ``origin``.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from coordexp.errors import TrackingError
from coordexp.report.records.data import ExperimentData, RunRecord, finite_values, read_by
from coordexp.report.records.from_folders import find_folder, from_folders, read_experiment_record, read_folders
from coordexp.report.records.from_mlflow import (
    ServerRuns,
    find_experiment,
    from_mlflow,
    open_client,
    others_sentence,
    plain_id,
    planned_runs,
    runs_of_ablation,
)
from coordexp.tracking.address import server_of
from coordexp.tracking.connection import tracking_errors

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

__all__ = [
    "as_one",
    "experiment_id_of",
    "from_folders",
    "from_mlflow",
    "joined",
    "load_experiment",
    "load_experiments",
    "load_runs",
]


def load_experiment(
    uri: str, name: str | None = None, *, runs_dir: Path | None = None, is_named: bool = False
) -> ExperimentData:
    """Read an experiment from MLflow and from its folders.

    Args:
        uri: MLflow's address.
        name: of the experiment; None is the one in which a run was started last.
        runs_dir: the directory that has the experiment's folder; None reads no folder.
        is_named: whether the user named this MLflow. If its experiment and the folder of that name are different
            experiments, the one of MLflow is then shown.

    Raises:
        TrackingError: if MLflow cannot be used or has no such experiment, and there is no folder of it either.
    """
    experiment_name = name
    try:
        client = open_client(uri)
        with tracking_errors(uri, "read the experiment"):
            experiment = find_experiment(client, uri, name)
            experiment_name = experiment.name
            return _read(client, uri, experiment, find_folder(runs_dir, experiment_name), is_named=is_named)
    except TrackingError as error:
        folder = find_folder(runs_dir, experiment_name)
        data_here = None if folder is None else read_folders(folder, uri=uri)
        if data_here is None:
            raise
        return replace(data_here, origin=(f"{error}. This is what {folder} holds.",))


def load_experiments(
    uri: str, names: Sequence[str], *, runs_dir: Path | None = None, is_named: bool = False
) -> ExperimentData:
    """Read several experiments as one. Every group's name gets its experiment's before it.

    Arguments and errors are those of :func:`load_experiment`.
    """
    return as_one([load_experiment(uri, name, runs_dir=runs_dir, is_named=is_named) for name in dict.fromkeys(names)])


def as_one(experiments: Sequence[ExperimentData]) -> ExperimentData:
    """Return several experiments as one, every group's name with its experiment's before it."""
    if len(experiments) == 1:
        return experiments[0]
    runs: list[RunRecord] = []
    for data in experiments:
        runs += [replace(run, group=f"{data.name}/{run.group}") for run in data.runs]
    ceilings = {data.codec_ceiling for data in experiments}
    return ExperimentData(
        name=" and ".join(data.name for data in experiments),
        uri=experiments[0].uri,
        runs=tuple(runs),
        codec_ceiling=experiments[0].codec_ceiling if len(ceilings) == 1 else None,
        origin=tuple(sentence for data in experiments for sentence in data.origin),
        others=tuple(sentence for data in experiments for sentence in data.others),
    )


def load_runs(uri: str, title: str, run_ids: Sequence[str]) -> ExperimentData:
    """Read chosen runs of any experiments, by MLflow's ids.

    Names are made distinct by the experiment's name, and where that is not enough by the start of the run's id.

    Raises:
        TrackingError: if an id is not that of a run of a group and seed.
    """
    client = open_client(uri)
    with tracking_errors(uri, "read the runs"):
        server_runs = [client.get_run(run_id) for run_id in dict.fromkeys(run_ids)]
        for run in server_runs:
            if not {"group", "seed"} <= run.data.tags.keys():
                raise TrackingError(
                    f"MLflow run {run.info.run_id} ({run.info.run_name}) has no group and seed: "
                    "expected the id of a run of coordexp, not of the ablation above it"
                )
        experiment_ids = {run.info.experiment_id for run in server_runs}
        names = {experiment_id: client.get_experiment(experiment_id).name for experiment_id in experiment_ids}
        runs = [from_mlflow(client, run, names[run.info.experiment_id]) for run in server_runs]
    return ExperimentData(name=title, uri=uri, runs=tuple(_distinct(runs)))


def experiment_id_of(uri: str, name: str | None) -> str:
    """Return MLflow's id of an experiment; for ``name`` None, of the one in which a run was started last.

    Raises:
        TrackingError: if this MLflow cannot be used, or has no such experiment; the nearest name is in the sentence.
    """
    client = open_client(uri)
    with tracking_errors(uri, "find the experiment"):
        return plain_id(find_experiment(client, uri, name).experiment_id)


def joined(on_server: RunRecord | None, on_disk: RunRecord | None) -> RunRecord:
    """Return one record of a run that MLflow, its folder or both hold, by the table above."""
    if on_server is None or on_disk is None:
        record = on_disk if on_server is None else on_server
        assert record is not None, "one of the sources has the run"
        return record
    if on_server.state == "finished" or on_disk.state == "waiting":
        return on_server
    return replace(on_disk, run_id=on_server.run_id, parent_id=on_server.parent_id, key=on_server.key)


def _read(
    client: "MlflowClient", uri: str, experiment: "Experiment", folder: Path | None, *, is_named: bool
) -> ExperimentData:
    """Return an experiment from MLflow, and from ``folder`` if it holds the same one."""
    server_runs, folder, refusal = _ablation_to_show(client, experiment, folder, is_named=is_named)
    parent = server_runs.parent
    on_server = [from_mlflow(client, run, experiment.name) for run in server_runs.shown]
    on_server += planned_runs(parent, experiment.name, {(run.group, run.seed) for run in on_server})
    data_here = None if folder is None else read_folders(folder, uri=uri)
    server_by_name = {run.name: run for run in on_server}
    disk_by_name = {} if data_here is None else {run.name: run for run in data_here.runs}
    runs = [joined(server_by_name.get(name), disk_by_name.get(name)) for name in server_by_name | disk_by_name]

    where = f"MLflow at {server_of(uri)}"
    if not runs:
        raise TrackingError(f"experiment {experiment.name!r} in {where} has no runs yet")
    lost = [run.name for run in disk_by_name.values() if _is_lost(server_by_name.get(run.name), run)]
    origin = f"Not in {where}, or deleted there, and read from {folder}: {', '.join(lost)}."
    notes = [refusal] if refusal else []
    if server_runs.others:
        notes.append(others_sentence(experiment.name, uri, server_runs.others))
    if parent is not None:
        codec_ceiling = finite_values(parent.data.metrics).get("codec_ceiling/AP")
    else:
        codec_ceiling = None if data_here is None else data_here.codec_ceiling
    data = ExperimentData(
        name=experiment.name,
        uri=uri,
        runs=tuple(sorted(runs, key=lambda run: (run.group, run.seed))),
        codec_ceiling=codec_ceiling,
        origin=(origin,) if lost else (),
        others=tuple(notes),
        parent_id=plain_id(parent.info.run_id) if parent else "",
        experiment_id=plain_id(experiment.experiment_id),
    )
    # A group has one reading: that of its newest run, where a command with another one has not come to its end.
    # MLflow gave the newest runs first, so that the last one written here is the newest.
    return read_by(data, {run.group: run.reading for run in reversed(runs)})


def _ablation_to_show(
    client: "MlflowClient", experiment: "Experiment", folder: Path | None, *, is_named: bool
) -> tuple[ServerRuns, Path | None, str]:
    """Return the runs of the ablation to show, its folder, and a sentence if the folder holds another ablation.

    One name may stand for several ablations: ``--fresh`` begins a new one, and other machines have theirs. The folder
    decides which is meant, unless MLflow lacks that one and the user named this MLflow.
    """
    record = None if folder is None else read_experiment_record(folder)
    key = "" if record is None else f"{experiment.name}/{record.instance}"
    server_runs = runs_of_ablation(client, experiment.experiment_id, key=key)
    if not key or server_runs.parent is not None or not server_runs.others or not is_named:
        return server_runs, folder, ""
    sentence = f"{folder} holds another experiment of this name: coordexp report without --tracking-uri shows it."
    return runs_of_ablation(client, experiment.experiment_id), None, sentence


def _is_lost(on_server: RunRecord | None, on_disk: RunRecord) -> bool:
    """Return whether MLflow does not have a run that has begun; one that is only planned there has no id."""
    return on_disk.state != "waiting" and (on_server is None or not on_server.run_id)


def _distinct(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return runs with names of their own: first ``EXPERIMENT/GROUP``, then ``GROUP#ID``."""
    experiments_by_group: dict[str, set[str]] = {}
    for run in runs:
        experiments_by_group.setdefault(run.group, set()).add(run.experiment)
    by_experiment = [
        replace(run, group=f"{run.experiment}/{run.group}") if len(experiments_by_group[run.group]) > 1 else run
        for run in runs
    ]
    count = Counter(run.name for run in by_experiment)
    return [
        replace(run, group=f"{run.group}#{run.run_id[:6]}") if count[run.name] > 1 else run for run in by_experiment
    ]
