"""Runs -> a study: every number of a report. Whatever cannot be had is named instead."""

from dataclasses import replace
from pathlib import Path

from coordexp.data.sets.image_facts import ImageFacts, read_image_facts
from coordexp.data.units import UnitNames, read_unit_names, units_of_set
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.tags import Tags, read_tags, tags_of_set
from coordexp.errors import ComparisonError, CoordExpError
from coordexp.files import sha256_of_file
from coordexp.report.parts.listed import PARTS
from coordexp.report.study.about import Fairness, about, check_fairness, unread_configs
from coordexp.report.study.artifacts import Artifacts
from coordexp.report.study.boxes import group_breakdowns
from coordexp.report.study.cautions import find_cautions, whole_verdict
from coordexp.report.study.comparing import compare_under_every_reading
from coordexp.report.study.data import ExperimentData, missing_runs
from coordexp.report.study.inputs import OnProgress, Outcome, Settings, StudyInputs, attempt, with_own_detections
from coordexp.report.study.learning import compare_learning
from coordexp.report.study.measures import decompose_errors, measure_by_protocols
from coordexp.report.study.pictures import choose_edges, draw_gallery
from coordexp.report.study.study import Study


def make_study(
    data: ExperimentData,
    artifacts: Artifacts,
    settings: Settings,
    *,
    on_progress: OnProgress = lambda what, done, total: None,
) -> Study:
    """Compute what a report shows. An unfinished experiment gives what it has, and says what it lacks.

    Args:
        data: the runs.
        artifacts: finds their files.
        settings: how the study is made.
        on_progress: called with (what, done, total).

    Raises:
        ComparisonError: if runs were evaluated on other validation data, or differ outside the declared factor
            and that was not allowed.
        DataError: if the units or slices asked for cannot be found in the annotations.
    """
    fairness = check_fairness(data, artifacts) if data.trained else None
    if fairness is not None and not settings.allow_differences:
        _refuse_differences(fairness)
    missing = [*data.origin, *missing_runs(data), *unread_configs(data, artifacts)]
    annotations = _annotations(data, artifacts)
    study = Study(data, fairness=fairness, about=about(data, artifacts))
    if annotations is None:
        missing.append("No statistics and no images: the annotations of the validation split are not on this machine.")
        return replace(study, missing=tuple(missing))

    try:
        facts = _facts(data, artifacts, settings)
    except CoordExpError as error:
        # The runs are finished: a report by image is worth more than none, as long as it says so.
        missing.append(f"No units and tags of the experiment's set: {error}")
        facts = None
    inputs = StudyInputs(
        data=data,
        artifacts=artifacts,
        settings=settings,
        annotations=annotations,
        units=_units(settings, annotations, facts),
        tags=_tags(settings, annotations, facts),
        on_progress=on_progress,
        own={},
        compared=(),
    )
    measured = _measured(study, inputs)
    return replace(measured.value, missing=(*missing, *measured.missing))


def _measured(study: Study, inputs: StudyInputs) -> Outcome[Study]:
    """Return a study with the numbers that follow from detections, and sentences on those that cannot be had."""
    with_files = with_own_detections(inputs)
    inputs = with_files.value
    cautions = find_cautions(inputs)
    readings = compare_under_every_reading(inputs)
    comparison = readings.value.get("own")
    protocols = attempt("protocols", lambda: measure_by_protocols(inputs, comparison))
    curves = attempt("convergence", lambda: compare_learning(inputs))
    decomposition = attempt("decomposition", lambda: decompose_errors(inputs))
    breakdowns = attempt("analysis of boxes", lambda: Outcome(group_breakdowns(inputs.finished, inputs.artifacts)))
    gallery = attempt("gallery", lambda: draw_gallery(inputs))
    edges = attempt("coordinate distributions", lambda: choose_edges(inputs))
    parts = [part.measured(inputs) for part in PARTS]

    study = replace(
        study,
        verdict=whole_verdict(inputs, readings.value, study.fairness, cautions, protocols.value),
        comparison=comparison,
        readings=readings.value,
        convergence=curves.value,
        decomposition=decomposition.value,
        breakdowns=breakdowns.value or {},
        gallery=gallery.value or (),
        coord_curves=edges.value or (),
        num_images=len(read_ground_truth(inputs.annotations).sizes_px),
        cautions=cautions,
        units=inputs.units,
        protocols=protocols.value,
        parts=tuple(part.value for part in parts if part.value is not None),
    )
    outcomes = (with_files, readings, protocols, curves, decomposition, breakdowns, gallery, edges, *parts)
    return Outcome(study, tuple(sentence for outcome in outcomes for sentence in outcome.missing))


def _refuse_differences(fairness: Fairness) -> None:
    """Raise a ComparisonError if runs differ outside the declared factor; it lists what differs."""
    if fairness.comparable:
        return
    lines: list[str] = []
    for row in fairness.rows:
        if not row.declared:
            lines.append(f"  {row.key}  " + "  ".join(f"{name}: {value}" for name, value in row.values))
    raise ComparisonError(
        f"runs differ in more than the declared factor ({', '.join(fairness.factor)}), so they cannot be compared "
        "(--allow-differences shows the report all the same):\n" + "\n".join(lines)
    )


def _annotations(data: ExperimentData, artifacts: Artifacts) -> Path | None:
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
    (first_name, first_path), *others = paths_by_run.items()
    for name, path in others:
        if hashes[path] != hashes[first_path]:
            raise ComparisonError(
                f"{first_name} and {name} were evaluated on other validation data ({first_path} and {path} "
                "differ), so their AP cannot be compared: expected runs on the same annotations"
            )
    return first_path


def _facts(data: ExperimentData, artifacts: Artifacts, settings: Settings) -> ImageFacts | None:
    """Return what the experiment's set knows of its validation images; None for files, and for runs before sets."""
    path = settings.image_facts
    if path is None:
        candidates = (artifacts.image_facts(run) for run in data.trained)
        path = next((candidate for candidate in candidates if candidate is not None and candidate.is_file()), None)
    return None if path is None else read_image_facts(path)


def _units(settings: Settings, annotations: Path, facts: ImageFacts | None) -> UnitNames | None:
    """Return the units of the validation images: those asked for, else those of the experiment's set."""
    if settings.unit_by is not None:
        return read_unit_names(annotations, settings.unit_by, facts)
    if facts is None or facts.unit_by is None:
        return None
    return units_of_set(list(read_ground_truth(annotations).sizes_px), facts, facts.unit_by)


def _tags(settings: Settings, annotations: Path, facts: ImageFacts | None) -> Tags | None:
    """Return the tags of the validation images: those asked for, else those of the experiment's set."""
    truth = read_ground_truth(annotations)
    if settings.slices:
        return read_tags(truth, settings.slices, facts=facts)
    tags = None if facts is None else tags_of_set(truth, facts)
    return None if tags is None or not tags.tags else tags
