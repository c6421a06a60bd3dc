"""Results of experiments that differ in one key, as a folder to commit, and the check that its numbers follow."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from coordexp.config.schema.fields import Name
from coordexp.data.sets.image_facts import read_image_facts
from coordexp.errors import ComparisonError
from coordexp.files import JsonValue, first_problem, read_content, read_model, replace_directory, write_json
from coordexp.metrics import BoxKind
from coordexp.report.over.compare import FilesOver, OverStudy, leads_by_reading
from coordexp.report.over.write import leads_record, over_numbers, write_over
from coordexp.report.published.check import find_annotations, settings_again
from coordexp.report.published.folder import (
    ANNOTATIONS,
    DETECTIONS,
    IMAGES,
    NUMBERS,
    ApByGroup,
    Computed,
    check_numbers,
    copy_from_here,
    keep_publishable,
    numbers_in,
    pack,
    stated_numbers,
    write_readme,
)
from coordexp.report.published.publish import file_of
from coordexp.report.records.artifacts import NAMES, Artifacts
from coordexp.report.records.data import by_group
from coordexp.report.study.ground import units_of
from coordexp.report.study.inputs import Detections, OnProgress
from coordexp.report.write import writing
from coordexp.statistics.readings import ReadingName, reads


@dataclass(frozen=True)
class _Reading:
    seeds: Annotated[Mapping[Name, ApByGroup], Field(min_length=1)]  # experiment -> group -> training seed -> AP


@dataclass(frozen=True)
class OverSources:
    """What ``numbers.json`` says of how to compute it again; experiments, groups and seeds become names of files."""

    over: str  # the key
    reference: Name
    boxes: Mapping[Name, BoxKind]  # by group: those of its own reading
    readings: Annotated[Mapping[ReadingName, _Reading], Field(min_length=1)]
    computed: Computed


def publish_over(study: OverStudy, artifacts: Artifacts, output: Path, *, without_data: bool = False) -> None:
    """Write what is worth committing of a comparison over a key; a folder of that name is replaced as a whole.

    Runs that have not finished are left out, and the report in the folder names them.

    Args:
        study: the comparison.
        artifacts: finds the files of its runs.
        output: the folder.
        without_data: leave out annotations; ``--check`` then asks for them.

    Raises:
        ComparisonError: if a file of a finished run is missing, or a name cannot be that of a file.
    """
    annotations_sha256 = sha256(read_content(study.annotations)).hexdigest() if without_data else None
    numbers = _numbers_of(study, annotations_sha256)
    try:
        TypeAdapter(OverSources).validate_python(json.loads(json.dumps(numbers)))
    except ValidationError as error:
        raise ComparisonError(f"{study.title} cannot be published: {first_problem(error)}") from None

    with writing(output.parent), replace_directory(output) as building:
        if annotations_sha256 is None:
            pack(study.annotations, building / ANNOTATIONS)
        else:
            num_images = study.readings["own"].num_images
            write_readme(
                building,
                output,
                study.title,
                num_images,
                annotations=study.annotations,
                annotations_sha256=annotations_sha256,
            )
        _write_runs(study, artifacts, building)
        write_json(building / NUMBERS, numbers, indent=1)
        keep_publishable(write_over(study, building))


def check_over(directory: Path, annotations: Path | None, on_progress: OnProgress) -> int:
    """Compute the numbers of published results over a key again, and return how many there are.

    Args:
        directory: the published folder.
        annotations: the annotation file of results without data.
        on_progress: called with (what, done, total).

    Raises:
        ComparisonError: if a number does not follow from the detections, or is missing.
        DataError: if a file is missing or damaged, or the annotations are not those of the results.
    """
    path = directory / NUMBERS
    published = read_model(OverSources, path, what="the numbers of published results over a key")
    truth_path = find_annotations(directory, published.computed, annotations)
    settings = settings_again(directory, published.computed)
    facts = None if settings.image_facts is None else read_image_facts(settings.image_facts)
    units = units_of(settings, truth_path, facts)
    files: dict[ReadingName, FilesOver] = {}
    for reading in published.readings:
        files[reading] = published_files(directory, published, reading)
    readings = leads_by_reading(truth_path, files, published.reference, settings, units, on_progress=on_progress)

    again = {reading: leads_record(leads) for reading, leads in readings.items()}
    computed = dict(numbers_in(json.loads(json.dumps(again)), ("readings",)))
    stated = stated_numbers(path)
    follows = {place: value for place, value in stated.items() if place[0] == "readings"}
    check_numbers(path, follows, computed)
    return len(follows)


def published_files(directory: Path, published: OverSources, reading: ReadingName) -> FilesOver:
    """Return the detections in a published folder that a reading takes."""
    files: dict[str, Detections] = {}
    for experiment, groups in published.readings[reading].seeds.items():
        files[experiment] = {
            group: {
                seed: _detections_path(directory, experiment, group, seed, reading, published.boxes) for seed in seeds
            }
            for group, seeds in groups.items()
        }
    return files


def config_path(directory: Path, experiment: str, group: str) -> Path:
    """Return where a published folder has the configuration of a group's runs."""
    return directory / f"config-{experiment}-{group}.yaml"


def fingerprints_path(directory: Path, experiment: str) -> Path:
    """Return where a published folder has the fingerprints of an experiment's runs, by their names."""
    return directory / "fingerprints" / f"{experiment}.json"


def _numbers_of(study: OverStudy, annotations_sha256: str | None) -> dict[str, object]:
    """Return what ``numbers.json`` holds of a comparison over a key."""
    own_reading = study.readings["own"]
    computed: dict[str, object] = {"resamples": own_reading.resamples, "seed": own_reading.seed}
    if study.units is not None:
        computed["unit_by"] = study.units.rule
    if annotations_sha256 is not None:
        computed["annotations_sha256"] = annotations_sha256
    return {**over_numbers(study), "boxes": study.boxes, "computed": computed}


def _write_runs(study: OverStudy, artifacts: Artifacts, building: Path) -> None:
    """Write the files of runs: detections, configurations and fingerprints, and the facts of images."""
    for reading, over in study.files.items():
        for experiment, groups in over.items():
            for group, paths in groups.items():
                for seed, path in paths.items():
                    target = _detections_path(building, experiment, group, seed, reading, study.boxes)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    pack(path, target)
    for experiment in study.experiments:
        finished_runs = [run for run in experiment.runs if run.state == "finished"]
        fingerprints: dict[str, JsonValue] = {}
        for run in finished_runs:
            fingerprints[run.name] = json.loads(file_of(artifacts, run, NAMES.fingerprint).read_bytes())
        path = fingerprints_path(building, experiment.name)
        path.parent.mkdir(exist_ok=True)
        write_json(path, fingerprints, indent=1)
        for group, runs in by_group(finished_runs).items():
            config = file_of(artifacts, runs[0], NAMES.config)
            copy_from_here(config, config_path(building, experiment.name, group))
    if study.image_facts is not None:
        pack(study.image_facts, building / IMAGES)


def _detections_path(
    directory: Path, experiment: str, group: str, seed: int, reading: ReadingName, boxes: Mapping[str, BoxKind]
) -> Path:
    """Return where the boxes lie that a reading takes of a run: two readings of one kind of boxes share a file."""
    _, kind = reads(reading, boxes.get(group, "expected"))
    return directory / DETECTIONS / experiment / f"{group}-s{seed}.{kind}.json.gz"
