"""The ground truth that the runs of a study share, and what is known of its images: units and tags."""

from pathlib import Path

from coordexp.data.sets.image_facts import ImageFacts, read_image_facts
from coordexp.data.units import UnitNames, read_unit_names, units_of_set
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.tags import Tags, read_tags, tags_of_set
from coordexp.errors import ComparisonError
from coordexp.files import sha256_of_file
from coordexp.report.records.artifacts import Artifacts
from coordexp.report.records.data import ExperimentData
from coordexp.report.study.inputs import Settings


def find_annotations(data: ExperimentData, artifacts: Artifacts) -> Path | None:
    """Return the ground truth that runs were evaluated on; None if it is not on this machine.

    Raises:
        ComparisonError: if two runs were evaluated on different files.
    """
    paths_by_run: dict[str, Path] = {}
    for run in data.runs:
        path = artifacts.annotations(run)
        if path is not None:
            paths_by_run[run.name] = path
    if not paths_by_run:
        return None
    hashes = {path: sha256_of_file(path) for path in set(paths_by_run.values())}
    first_name, first_path = next(iter(paths_by_run.items()))
    for name, path in paths_by_run.items():
        if hashes[path] != hashes[first_path]:
            raise ComparisonError(
                f"{first_name} and {name} were evaluated on other validation data ({first_path} and {path} "
                "differ), so their AP cannot be compared: expected runs on the same annotations"
            )
    return first_path


def read_facts(data: ExperimentData, artifacts: Artifacts, settings: Settings) -> ImageFacts | None:
    """Return what the experiment's set knows of its validation images; None for files, and for runs before sets."""
    path = find_facts(data, artifacts, settings)
    return None if path is None else read_image_facts(path)


def find_facts(data: ExperimentData, artifacts: Artifacts, settings: Settings) -> Path | None:
    """Return the file that :func:`read_facts` reads."""
    if settings.image_facts is not None:
        return settings.image_facts
    candidates = (artifacts.image_facts(run) for run in data.trained)
    return next((candidate for candidate in candidates if candidate is not None and candidate.is_file()), None)


def units_of(settings: Settings, annotations: Path, facts: ImageFacts | None) -> UnitNames | None:
    """Return the units of the validation images: those asked for, else those of the experiment's set."""
    if settings.unit_by is not None:
        return read_unit_names(annotations, settings.unit_by, facts)
    if facts is None or facts.unit_by is None:
        return None
    return units_of_set(list(read_ground_truth(annotations).sizes_px), facts, facts.unit_by)


def tags_of(settings: Settings, annotations: Path, facts: ImageFacts | None) -> Tags | None:
    """Return the tags of the validation images: those asked for, else those of the experiment's set."""
    truth = read_ground_truth(annotations)
    if settings.slices:
        return read_tags(truth, settings.slices, facts=facts)
    tags = None if facts is None else tags_of_set(truth, facts)
    return None if tags is None or not tags.tags else tags
