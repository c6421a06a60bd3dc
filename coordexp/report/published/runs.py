"""The runs of results that were published over a key: one more value of it needs no old run again.

``coordexp report results/amount amount_64 --over KEY`` reads the old experiments from the published folder. They are
unpacked as folders of runs, so that a report finds their files as it finds those of any run.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from coordexp.errors import ConfigError, DataError
from coordexp.files import JsonValue, read_content, read_json, read_model, write_json
from coordexp.metrics import BoxKind
from coordexp.report.published.check import find_annotations
from coordexp.report.published.folder import ANNOTATIONS, NUMBERS, is_over_key
from coordexp.report.published.over import OverSources, config_path, fingerprints_path, published_files
from coordexp.report.records.artifacts import NAMES, final_detections
from coordexp.report.records.data import ExperimentData, RunRecord
from coordexp.runs.folder import ExperimentFolder

# Where the ground truth lies of an experiment whose runs have recorded nothing else of their data.
_GROUND_TRUTH = "instances_val.json"


def is_published(directory: Path) -> bool:
    """Return whether a path is a published folder."""
    return (directory / NUMBERS).is_file()


def read_published(directory: Path, scratch: Path, *, uri: str) -> list[ExperimentData]:
    """Unpack the experiments of a published folder, and return them as a report reads experiments.

    Args:
        directory: the published folder.
        scratch: an empty folder for the files of runs, which are read from there later.
        uri: MLflow's address, which the result names; nothing is asked there.

    Raises:
        ConfigError: if the folder was not published over a key.
        DataError: if a file is missing or damaged.
    """
    if not is_over_key(directory):
        raise ConfigError(
            f"{directory} holds one experiment, and of its runs only the boxes of their own reading, but --over also "
            "reads all by argmax: name the experiment itself, or a folder that report --over --publish wrote"
        )
    published = read_model(OverSources, directory / NUMBERS, what="the numbers of published results over a key")
    names = dict.fromkeys(name for reading in published.readings.values() for name in reading.seeds)
    experiments: list[ExperimentData] = []
    for name in names:
        runs = _unpack_experiment(directory, published, scratch / name)
        experiments.append(ExperimentData(name=name, uri=uri, runs=tuple(runs)))
    return experiments


def with_published(experiments: Sequence[ExperimentData], published: Sequence[ExperimentData]) -> list[ExperimentData]:
    """Return published experiments together with those of this machine.

    A run of this machine replaces the published one of its name if it has finished.
    """
    by_name = {data.name: data for data in published}
    for data in experiments:
        if data.name not in by_name:
            by_name[data.name] = data
            continue
        runs = {run.name: run for run in by_name[data.name].runs}
        runs |= {run.name: run for run in data.runs if run.state == "finished" or run.name not in runs}
        in_order = sorted(runs.values(), key=lambda run: (run.group, run.seed))
        by_name[data.name] = replace(data, runs=tuple(in_order))
    return list(by_name.values())


def check_annotations(directory: Path, annotations: Path) -> None:
    """Check that published runs were evaluated on the annotations that a comparison takes.

    Raises:
        DataError: if they were not.
    """
    published = read_model(OverSources, directory / NUMBERS, what="the numbers of published results over a key")
    find_annotations(directory, published.computed, annotations)


def _unpack_experiment(directory: Path, published: OverSources, experiment_dir: Path) -> list[RunRecord]:
    """Write the files of an experiment's runs, and its ground truth where that is published; return the runs."""
    runs: dict[str, RunRecord] = {}
    for reading in published.readings:
        groups = published_files(directory, published, reading).get(experiment_dir.name, {})
        for group, detections in groups.items():
            for seed, path in detections.items():
                run = _record(experiment_dir, group, seed, published.boxes.get(group, "expected"))
                runs[run.name] = run
                _unpack(path, Path(run.run_dir) / final_detections(run, reading))

    fingerprints = _fingerprints(directory, experiment_dir.name)
    for run in runs.values():
        if run.name not in fingerprints:
            raise DataError(f"{fingerprints_path(directory, experiment_dir.name)} lacks {run.name}; publish again")
        write_json(Path(run.run_dir) / NAMES.fingerprint, fingerprints[run.name])
        _unpack(config_path(directory, experiment_dir.name, run.group), Path(run.run_dir) / NAMES.config)
    if (directory / ANNOTATIONS).is_file():
        _unpack(directory / ANNOTATIONS, ExperimentFolder(experiment_dir).data / _GROUND_TRUTH)
    return list(runs.values())


def _record(experiment_dir: Path, group: str, seed: int, reading: BoxKind) -> RunRecord:
    return RunRecord(
        run_id="",
        group=group,
        seed=seed,
        state="finished",
        run_dir=str(ExperimentFolder(experiment_dir).run(group, seed).path),
        experiment=experiment_dir.name,
        reading=reading,
    )


def _fingerprints(directory: Path, experiment: str) -> dict[str, JsonValue]:
    path = fingerprints_path(directory, experiment)
    fingerprints = read_json(path)
    if not isinstance(fingerprints, dict):
        raise DataError(f"{path}: expected the fingerprint of each run by its name; publish the results again")
    return cast("dict[str, JsonValue]", fingerprints)


def _unpack(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(read_content(source))
