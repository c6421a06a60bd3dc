"""Runs -> a study: every number of a report. Whatever cannot be had is named instead."""

from dataclasses import replace

from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import ComparisonError, CoordExpError
from coordexp.report.parts.listed import PARTS
from coordexp.report.records.artifacts import Artifacts
from coordexp.report.records.data import ExperimentData, missing_runs
from coordexp.report.study.about import Fairness, about, check_fairness, unread_configs
from coordexp.report.study.boxes import group_breakdowns
from coordexp.report.study.cautions import find_cautions, whole_verdict
from coordexp.report.study.comparing import compare_under_every_reading
from coordexp.report.study.ground import find_annotations, read_facts, tags_of, units_of
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
    annotations = find_annotations(data, artifacts)
    study = Study(data, fairness=fairness, about=about(data, artifacts))
    if annotations is None:
        missing.append("No statistics and no images: the annotations of the validation split are not on this machine.")
        return replace(study, missing=tuple(missing))

    try:
        facts = read_facts(data, artifacts, settings)
    except CoordExpError as error:
        # The runs are finished: a report by image is worth more than none, as long as it says so.
        missing.append(f"No units and tags of the experiment's set: {error}")
        facts = None
    inputs = StudyInputs(
        data=data,
        artifacts=artifacts,
        settings=settings,
        annotations=annotations,
        units=units_of(settings, annotations, facts),
        tags=tags_of(settings, annotations, facts),
        on_progress=on_progress,
        own_detections={},
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
    listed_parts = [listed.measured(inputs) for listed in PARTS]

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
        parts=tuple(outcome.value for outcome in listed_parts if outcome.value is not None),
    )
    outcomes = (with_files, readings, protocols, curves, decomposition, breakdowns, gallery, edges, *listed_parts)
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
