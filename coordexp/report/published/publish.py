"""Write an experiment's results as a folder to commit: ``coordexp report EXPERIMENT --publish DIR``."""

import json
from dataclasses import asdict, astuple, replace
from hashlib import sha256
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from coordexp.detection.decomposition import MEASURES
from coordexp.errors import ComparisonError
from coordexp.files import JsonValue, first_problem, read_content, replace_directory, write_json
from coordexp.report.published.folder import (
    ANNOTATIONS,
    DETECTIONS,
    DISTRIBUTIONS,
    FINGERPRINTS,
    IMAGES,
    NUMBERS,
    Sources,
    copy_from_here,
    detections_path,
    keep_publishable,
    pack,
    write_readme,
)
from coordexp.report.records.artifacts import FINAL_CONSTRAINED, NAMES, Artifacts, final_detections
from coordexp.report.records.data import RunRecord, missing_runs
from coordexp.report.study.study import Study
from coordexp.report.text.records import to_numbers
from coordexp.report.write import write_report, writing
from coordexp.runs.folder import GENERATED_BY


def publish(study: Study, artifacts: Artifacts, output: Path, *, without_data: bool = False) -> None:
    """Write what is worth committing of an experiment; a folder of that name is replaced as a whole.

    Args:
        study: the experiment, all of whose runs have finished.
        artifacts: finds the files of its runs.
        output: the folder.
        without_data: leave out annotations and pictures; ``--check`` then asks for the annotations.

    Raises:
        ComparisonError: if a run or a file is missing, or there are rows that are files of other detectors.
    """
    data = study.data
    if study.comparison is None or missing_runs(data):
        raise ComparisonError(f"{data.title} is not whole, and so not published: {' '.join(study.missing)}")
    if len(data.trained) < len(data.runs):
        raise ComparisonError(f"{data.title} is published without files of other detectors; leave out --with")
    annotations = artifacts.annotations(data.runs[0])
    assert annotations is not None, "there is a comparison, and so there are annotations"
    annotations_sha256 = sha256(read_content(annotations)).hexdigest() if without_data else None
    numbers = numbers_of(study, annotations_sha256)
    try:
        TypeAdapter(Sources).validate_python(numbers)
    except ValidationError as error:
        raise ComparisonError(f"{data.title} cannot be published: {first_problem(error)}") from None

    with writing(output.parent), replace_directory(output) as building:
        if annotations_sha256 is None:
            pack(annotations, building / ANNOTATIONS)
        else:
            study = replace(study, gallery=())
            write_readme(
                building,
                output,
                data.title,
                study.num_images,
                annotations=annotations,
                annotations_sha256=annotations_sha256,
            )
        _write_runs(study, artifacts, building)
        write_json(building / NUMBERS, numbers, indent=1)
        keep_publishable(write_report(study, building))


def numbers_of(study: Study, annotations_sha256: str | None = None) -> dict[str, object]:
    """Return what ``numbers.json`` holds of a study that has a comparison.

    Args:
        study: of runs, or in the check of files of their detections.
        annotations_sha256: of results without data; None where the annotations are published.
    """
    comparison, decomposition = study.comparison, study.decomposition
    assert comparison is not None, "only a study with a comparison is published"
    errors_of: dict[str, dict[str, list[object]]] = {}
    if decomposition is not None:
        by_name = dict(decomposition.value)
        by_name |= {f"{pair.a} - {pair.b}": pair.difference for pair in decomposition.pairs}
        for name, estimates in by_name.items():
            errors_of[name] = {m.name: list(astuple(estimates[m.name])) for m in MEASURES if m.name in estimates}
    computed: dict[str, object] = {"resamples": comparison.resamples, "seed": comparison.seed}
    if study.units is not None:
        computed["unit_by"] = study.units.rule
    if annotations_sha256 is not None:
        computed["annotations_sha256"] = annotations_sha256
    seeds = {
        group: {seed: estimate.value for seed, estimate in by_seed.items()}
        for group, by_seed in comparison.value_by_seed.items()
    }
    return {
        **json.loads(to_numbers(comparison, study.data)),
        "seeds": seeds,
        "decomposition": errors_of,
        "computed": computed,
    }


def _write_runs(study: Study, artifacts: Artifacts, building: Path) -> None:
    """Write the files of runs: detections, engines, configurations, distributions, fingerprints, and image facts."""
    data = study.data
    (building / DETECTIONS).mkdir()
    (building / DISTRIBUTIONS).mkdir()
    image_facts = artifacts.image_facts(data.runs[0])
    if image_facts is not None:  # runs before sets have none
        pack(image_facts, building / IMAGES)
    for run in data.runs:
        pack(file_of(artifacts, run, final_detections(run)), detections_path(building, run.group, run.seed))
    engines = {run.name: asdict(run.generator.record) for run in data.runs if run.generator.record is not None}
    if engines:
        write_json(building / DETECTIONS / GENERATED_BY, engines, indent=1)
    for runs in data.groups.values():
        first_run = runs[0]
        copy_from_here(file_of(artifacts, first_run, NAMES.config), building / f"config-{first_run.group}.yaml")
        distributions = artifacts.file(first_run, FINAL_CONSTRAINED.distributions)
        if distributions is not None:
            pack(distributions, building / DISTRIBUTIONS / f"{first_run.name}.json.gz")
    fingerprints: dict[str, JsonValue] = {}
    for run in data.runs:
        fingerprints[run.name] = json.loads(file_of(artifacts, run, NAMES.fingerprint).read_bytes())
    write_json(building / FINGERPRINTS, fingerprints, indent=1)


def file_of(artifacts: Artifacts, run: RunRecord, name: Path) -> Path:
    """Return a file of a run; a ComparisonError says that it is nowhere, so that its results are not published."""
    path = artifacts.file(run, name)
    if path is None:
        raise ComparisonError(f"{run.name}: {name} is neither in its directory nor in MLflow: it is not published")
    return path
