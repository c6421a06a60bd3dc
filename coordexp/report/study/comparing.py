"""The groups of a study compared under every reading, and whether the detections are those that runs have logged."""

import math
from collections.abc import Mapping

from coordexp.detection.box_evaluation import MatchedBoxes
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.precision.fair_order import in_fair_order
from coordexp.errors import CoordExpError
from coordexp.files import sha256_of_file
from coordexp.metrics import MetricName
from coordexp.report.records.data import RunRecord
from coordexp.report.study.inputs import Detections, Outcome, StudyInputs, attempt, detections_of_runs, few_names
from coordexp.statistics.comparison import compare_readings
from coordexp.statistics.readings import READINGS, WORDS, ReadingName, reads
from coordexp.statistics.resampling import enough_swaps
from coordexp.statistics.results import Comparison

_SAME_AP = 1e-6

Comparisons = dict[ReadingName, Comparison]
"""A comparison for each reading, each group's own reading first."""


def compare_under_every_reading(inputs: StudyInputs) -> Outcome[Comparisons]:
    """Compare the groups under every reading; a reading that lacks a file of some run is left out whole.

    Returns:
        The comparisons; none if there are no detections, or none that can be read.
    """
    if not inputs.own_detections:
        return Outcome({})
    detections: dict[ReadingName, Detections] = {"own": inputs.own_detections}
    missing: list[str] = []
    has_trained_runs = any(run.foreign is None for run in inputs.compared)
    for name in READINGS[1:] if has_trained_runs else ():  # files of other detectors have one reading
        files, lacking = detections_of_runs(inputs.artifacts, inputs.compared, name)
        if not lacking:
            detections[name] = files
            continue
        decoding, boxes = reads(name, lacking[0].reading)
        missing.append(
            f"No comparison {WORDS[name]}: {few_names([run.name for run in lacking])} left no detections of "
            f"{decoding} decoding and {boxes} boxes."
        )

    try:
        outcome = _compare(inputs, detections)
    except CoordExpError as error:
        # A file of another reading may be damaged: each group's own reading is worth showing without it.
        own_alone = attempt("comparison", lambda: _compare(inputs, {"own": inputs.own_detections}))
        missing += own_alone.missing
        if own_alone.value:
            missing.append(f"No other reading than each group's own: {error}")
        return Outcome(own_alone.value or {}, tuple(missing))
    return Outcome(outcome.value, (*missing, *outcome.missing))


def _compare(inputs: StudyInputs, detections: Mapping[ReadingName, Detections]) -> Outcome[Comparisons]:
    """Compare groups under the readings of ``detections``, and say which runs have logged another AP."""
    num_pairs = math.comb(len(inputs.data.groups), 2)
    comparisons = compare_readings(
        inputs.annotations,
        detections,
        resamples=inputs.settings.resamples,
        swaps=enough_swaps(num_pairs, resamples=inputs.settings.resamples),
        seed=inputs.settings.seed,
        families=inputs.families,
        units=inputs.units,
        on_progress=inputs.progress("comparing groups"),
    )
    sentences = [
        _other_than_logged(inputs, run, detections, comparisons) for run in inputs.compared if run.foreign is None
    ]
    return Outcome(comparisons, tuple(filter(None, sentences)))


def _other_than_logged(
    inputs: StudyInputs,
    run: RunRecord,
    detections: Mapping[ReadingName, Detections],
    comparisons: Mapping[ReadingName, Comparison],
) -> str:
    """Say that a run's detections do not give the AP that it logged, for the first such reading; else return "".

    Raises:
        AssertionError: if the detections are a copy that MLflow sent, and the annotations those that the run was
            measured on: this package has then taken one file for another.
    """
    truth = read_ground_truth(inputs.annotations)
    is_hash_known = bool(run.annotations)
    has_changed = is_hash_known and not sha256_of_file(inputs.annotations).startswith(run.annotations)
    for name, comparison in comparisons.items():
        decoding, boxes = reads(name, run.reading)
        path = detections[name][run.group][run.seed]
        logged_ap = run.metrics.get(str(MetricName(decoding, "AP", boxes)))
        computed_ap = comparison.value_by_seed[run.group][run.seed].value
        if logged_ap is None or logged_ap == computed_ap:
            continue
        as_written = read_detections(path, truth)
        if in_fair_order(truth, as_written) is not as_written:
            continue  # equal scores: the comparison takes their boxes in another order than the run did
        if inputs.artifacts.is_fetched(path) and is_hash_known and not has_changed:
            # The comparison adds up in another order, and differs in the last digits.
            exact_ap = MatchedBoxes(truth, as_written).average_precision("AP")
            assert exact_ap == logged_ap, f"{run.name} logged AP {logged_ap}, {path} from MLflow gives {exact_ap}"
        if abs(logged_ap - computed_ap) <= _SAME_AP:
            continue
        reason = f"{truth.path} has changed" if has_changed else f"{path} is not what was measured"
        return (
            f"{run.name} logged AP {logged_ap:.4f} under {decoding} decoding, but its detections give "
            f"{computed_ap:.4f}: {reason} since."
        )
    return ""
