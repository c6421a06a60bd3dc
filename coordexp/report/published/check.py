"""Compute published numbers again from the detections beside them: ``coordexp report --check DIR``."""

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from coordexp.data.units import UnitRule
from coordexp.detection.forms.results import read_results
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import ComparisonError, DataError
from coordexp.files import read_content, read_model
from coordexp.report.published.folder import (
    ANNOTATIONS,
    IMAGES,
    NUMBERS,
    Computed,
    Place,
    Sources,
    check_numbers,
    detections_path,
    numbers_in,
    stated_numbers,
)
from coordexp.report.published.publish import numbers_of
from coordexp.report.records.data import ExperimentData
from coordexp.report.records.foreign import foreign_rows
from coordexp.report.study.inputs import Settings
from coordexp.report.study.study import Study
from coordexp.report.write import study_of

_HEADLINE = ("AP", "interval")  # of a group
_SHOWN_DIGITS = 12


def check(directory: Path, *, annotations: Path | None = None) -> int:
    """Compute published numbers again, and return how many there are.

    Args:
        directory: the published folder.
        annotations: the annotation file of results without data; one that is in the folder may be given too.

    Raises:
        ComparisonError: if a number does not follow from the detections, or is missing.
        DataError: if a file is missing or damaged, or the annotations are not those of the results.
    """
    path = directory / NUMBERS
    published = read_model(Sources, path, what="the numbers of published results")
    truth_path = find_annotations(directory, published.computed, annotations)
    study = _study_again(directory, published, truth_path)
    if study.comparison is None:
        raise ComparisonError(" ".join(study.missing))
    again = json.loads(json.dumps(numbers_of(study, published.computed.get("annotations_sha256"))))
    stated = stated_numbers(path)
    check_numbers(path, stated, _without_new_metrics(dict(numbers_in(again)), stated))
    return len(stated)


def find_annotations(directory: Path, computed: Computed, annotations: Path | None) -> Path:
    """Return the ground truth of published results, after checking that it is the one they were computed on.

    Args:
        directory: the published folder.
        computed: what ``numbers.json`` says of the annotations, for results without data.
        annotations: the file that the user gave.

    Raises:
        DataError: if there are no annotations, or they are others.
    """
    in_folder = directory / ANNOTATIONS
    expected_hash = computed.get("annotations_sha256")
    if annotations is None:
        if expected_hash is None or in_folder.is_file():
            return in_folder
        raise DataError(
            f"{directory} was published without its annotations: give the file with --annotations FILE "
            f"(its SHA-256 begins with {expected_hash[:_SHOWN_DIGITS]}; README.md there has all of it)"
        )
    if expected_hash is None:
        expected_hash = sha256(read_content(in_folder)).hexdigest()
    actual_hash = sha256(read_content(annotations)).hexdigest()
    if actual_hash != expected_hash:
        raise DataError(
            f"{annotations}: these are not the annotations of {directory}: their SHA-256 begins with "
            f"{actual_hash[:_SHOWN_DIGITS]}, expected {expected_hash[:_SHOWN_DIGITS]}; give the file that the runs "
            "were evaluated on, unchanged"
        )
    return annotations


def _study_again(directory: Path, published: Sources, truth_path: Path) -> Study:
    """Study the published detections as files, with the draws of the published numbers."""
    truth = read_ground_truth(truth_path)
    files = {
        group: [read_results(detections_path(directory, group, seed), truth) for seed in seeds]
        for group, seeds in published.seeds.items()
    }
    seeds = [seed for by_seed in published.seeds.values() for seed in by_seed]
    with TemporaryDirectory(prefix="coordexp-") as scratch:
        rows = foreign_rows(files, truth_path, frames={}, images=None, scratch=Path(scratch))
        runs = tuple(replace(row, seed=seed) for row, seed in zip(rows, seeds, strict=True))
        data = ExperimentData(name=str(directory), uri="", runs=runs)
        settings = settings_again(directory, published.computed)
        study, _ = study_of(data, output=Path(scratch), runs_dir=Path(scratch), settings=settings)
    return study


def settings_again(directory: Path, computed: Computed) -> Settings:
    """Return the settings with which published numbers were computed."""
    if "unit_by" not in computed:
        return Settings(resamples=computed["resamples"], seed=computed["seed"])
    image_facts = directory / IMAGES
    return Settings(
        resamples=computed["resamples"],
        seed=computed["seed"],
        unit_by=UnitRule.parse(computed["unit_by"], option="computed.unit_by"),
        image_facts=image_facts if image_facts.is_file() else None,
    )


def _without_new_metrics(computed: Mapping[Place, float], stated: Mapping[Place, float]) -> dict[Place, float]:
    """Return computed numbers without those of metrics that came after the results were published.

    Such a metric is stated of no group.
    """
    sections = {place[0] for place in stated}
    stated_metrics = {(place[0], *place[2:3]) for place in stated}
    expected: dict[Place, float] = {}
    for place, value in computed.items():
        is_of_a_metric = place[0] in ("groups", "decomposition") and place[2] not in _HEADLINE
        is_new = is_of_a_metric and place[0] in sections and (place[0], place[2]) not in stated_metrics
        if place in stated or not is_new:
            expected[place] = value
    return expected
