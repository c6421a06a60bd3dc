"""What is measured of the same detections beside AP: the errors that AP50 is lost to, and other protocols."""

from pathlib import Path

from coordexp.detection.boxes import Bools
from coordexp.detection.protocols import PROTOCOLS
from coordexp.report.records.artifacts import FINAL_CONSTRAINED
from coordexp.report.study.inputs import Outcome, StudyInputs
from coordexp.statistics.decomposition import decompose
from coordexp.statistics.protocols import Protocols, compare_protocols
from coordexp.statistics.results import Comparison, Decomposition

MOST_RESAMPLES = 500
"""Of what says where to look; the differences of AP have four times as many."""


def decompose_errors(inputs: StudyInputs) -> Outcome[Decomposition | None]:
    """Return what each group loses AP50 to by its own reading; None without detections."""
    if not inputs.own_detections:
        return Outcome(None)
    decomposition = decompose(
        inputs.annotations,
        inputs.own_detections,
        resamples=min(inputs.settings.resamples, MOST_RESAMPLES),
        seed=inputs.settings.seed,
        families=inputs.families,
        units=inputs.units,
        on_progress=inputs.progress("finding errors"),
    )
    return Outcome(decomposition)


def measure_by_protocols(inputs: StudyInputs, comparison: Comparison | None) -> Outcome[Protocols | None]:
    """Measure the detections as published tables do, and test what contradicts ``comparison``; None without one."""
    if comparison is None:
        return Outcome(None)
    runs = {(run.group, run.seed): run for run in inputs.compared}
    written: dict[str, dict[int, Path]] = {group: {} for group in inputs.own_detections}
    logged: dict[str, dict[str, dict[int, float]]] = {protocol.name: {} for protocol in PROTOCOLS}
    for (group, seed), run in runs.items():
        in_file_order = None if run.foreign is None else run.foreign.written
        written[group][seed] = in_file_order or inputs.own_detections[group][seed]
        for name, logged_by_group in logged.items():
            value = run.own("constrained", name)
            if value is not None:
                logged_by_group.setdefault(group, {})[seed] = value

    def before_repeat(group: str, seed: int) -> Bools | None:
        from coordexp.evaluate.results import detections_before_repeat  # here: it brings torch, few need it

        path = inputs.artifacts.file(runs[group, seed], FINAL_CONSTRAINED.objects)
        return None if path is None else detections_before_repeat(path)

    protocols = compare_protocols(
        inputs.annotations,
        written,
        comparison,
        logged=logged,
        before_repeat=before_repeat,
        families=inputs.families,
        resamples=min(inputs.settings.resamples, MOST_RESAMPLES),
        seed=inputs.settings.seed,
        units=inputs.units,
        on_progress=inputs.progress("measuring by other protocols"),
    )
    return Outcome(protocols)
