"""A study for programs, with every digit: CSV and JSON of all of it, and the numbers of a comparison alone."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from coordexp.detection.metrics import detection_metrics
from coordexp.metrics import MetricName
from coordexp.report.records.data import ExperimentData, RunRecord
from coordexp.report.study.about import Fairness
from coordexp.report.study.study import Study, rendered_parts
from coordexp.report.text.notes import study_notes
from coordexp.report.text.tables import means
from coordexp.statistics.power import further
from coordexp.statistics.protocols import Protocols
from coordexp.statistics.readings import ReadingName, reads
from coordexp.statistics.results import Comparison, Convergence, Decomposition, Estimate
from coordexp.tracking.address import without_secrets

COLUMNS: tuple[str, ...] = (
    "experiment", "kind", "group", "against", "seed", "state", "step", "run_id", "metric", "value", "low", "high",
    "p_swap", "p_bootstrap", "p_holm", "image_std", "seed_std", "detectable", "num_images", "resamples", "message",
    "reading", "num_units", "slice",
)  # fmt: skip
_Line = dict[str, str | int | float | None]


def to_csv(study: Study) -> str:
    """Return one number a line; what is undefined is empty.

    ``kind`` is ``run`` (the last value of a metric of a run), ``group`` and ``seed`` (with intervals), ``pair``
    (a difference, ``group`` minus ``against``), ``convergence``, ``decomposition``, or ``protocol`` and ``protocol
    pair`` (the same detections measured otherwise), or ``slice``, ``slice pair`` and ``slice beyond largest`` (on the
    part of the images that ``slice`` names). ``reading`` says how boxes are read, and is empty in lines of each group's
    own reading. Kinds of other readings are their own (``pair reading``), so that nobody counts a pair twice.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    lines = [*_run_lines(study), *_statistics(study)]
    if study.protocols is not None:
        lines += _protocols(study.protocols)
    for _, shown in rendered_parts(study):
        lines += [dict(line) for line in shown.csv_lines]
    for name, comparison in study.readings.items():
        if name != "own":
            lines += [line | {"kind": f"{line['kind']} reading", "reading": name} for line in _comparison(comparison)]
    writer.writerows({"experiment": study.data.name} | line for line in lines)
    return out.getvalue()


def to_json(study: Study) -> str:
    """Return the runs by group with means over seeds, the statistics and the fairness table, as JSON."""
    data = study.data
    record = {
        "experiment": data.name,
        "uri": without_secrets(data.uri),
        "verdict": study.verdict,
        "codec_ceiling": data.codec_ceiling,
        "groups": {group: {"mean": means(runs), "runs": list(map(_run, runs))} for group, runs in data.groups.items()},
        "statistics": list(_statistics(study)),
        "readings": {name: _reading_record(name, comparison, data) for name, comparison in study.readings.items()},
        "further": further_records(study),
        "protocols": protocol_record(study.protocols),
        **part_records(study),
        "fairness": None if study.fairness is None else _fairness_record(study.fairness),
        "missing": list(study.missing),
        "notes": study_notes(study),
    }
    return json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _reading_record(name: ReadingName, comparison: Comparison, data: ExperimentData) -> dict[str, object]:
    """Return one reading as JSON: which decoding and boxes it takes, and its statistics."""
    decoding, _ = reads(name, "expected")  # it is the same for all groups
    return {
        "decoding": decoding,
        "boxes": {group: reads(name, data.readings[group])[1] for group in comparison.groups},
        "statistics": list(_comparison(comparison)),
    }


def _fairness_record(fairness: Fairness) -> dict[str, object]:
    rows = [{"key": row.key, "declared": row.declared, "values": dict(row.values)} for row in fairness.rows]
    return {
        "comparable": fairness.comparable,
        "factor": list(fairness.factor),
        "differences": rows,
        "without_fingerprint": list(fairness.unchecked),
    }


def to_numbers(comparison: Comparison, data: ExperimentData, parts: Mapping[str, object] | None = None) -> str:
    """Return what a program wants of a comparison as JSON: each group's metrics, means over seeds, and each pair.

    ``parts`` are further keys with their values, such as those of :func:`part_records`.
    """
    groups: dict[str, object] = {}
    for group in comparison.groups:
        estimate = comparison.value[group]
        logged = means(data.groups[group])
        other_metrics: dict[str, float] = {}
        for metric in detection_metrics():
            logged_name = str(MetricName("constrained", metric.name, data.readings[group]))
            if logged_name in logged and metric.name != comparison.metric:
                other_metrics[metric.name] = logged[logged_name]
        groups[group] = {comparison.metric: estimate.value, "interval": [estimate.low, estimate.high], **other_metrics}
    pairs: dict[str, object] = {
        f"{pair.a} - {pair.b}": {
            "difference": pair.difference.value,
            "interval": [pair.difference.low, pair.difference.high],
            "p_swap": pair.p_swap,
            "p_bootstrap": pair.p_bootstrap,
            "p_holm": pair.p_holm,
        }
        for pair in comparison.pairs
    }
    record: dict[str, object] = {"groups": groups, "pairs": pairs}
    if comparison.num_units is not None:
        record["sample"] = {"images": comparison.num_images, "units": comparison.num_units}
    record |= parts or {}
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def further_records(study: Study) -> list[dict[str, object]]:
    """Return for each pair what two more seeds, and twice the images or units, would detect."""
    comparison = study.comparison
    records: list[dict[str, object]] = []
    if comparison is None:
        return records
    for pair in comparison.pairs:
        of_pair: dict[str, object] = {"group": pair.a, "against": pair.b, "detectable": pair.detectable}
        records.append(of_pair | asdict(further(pair, comparison.drawn_units)))
    return records


def protocol_record(protocols: Protocols | None) -> dict[str, object] | None:
    """Return what each protocol gives as JSON, and the pairs that it turns round."""
    if protocols is None:
        return None
    record: dict[str, object] = {}
    for name, values in protocols.values.items():
        turned = [asdict(pair) for pair in protocols.turned_by(name)]
        record[name] = {"groups": dict(values), "ranking": protocols.ranking(name), "turned": turned}
    return record


def part_records(study: Study) -> dict[str, object]:
    """Return the listed parts as JSON, by their names."""
    return {listed_part.name: shown.record for listed_part, shown in rendered_parts(study)}


def _run(run: RunRecord) -> dict[str, object]:
    return {
        "seed": run.seed,
        "state": run.state,
        "step": run.step,
        "message": run.message,
        "run_id": run.run_id,
        "hardware": run.hardware,
        "metrics": dict(run.metrics),
    }


def _run_lines(study: Study) -> Iterator[_Line]:
    """Yield a line for each metric of each run; a run without numbers is still a line, which says where it stands."""
    for run in study.data.runs:
        of_run: _Line = {
            "kind": "run",
            "group": run.group,
            "seed": run.seed,
            "state": run.state,
            "step": run.step,
            "run_id": run.run_id,
            "message": run.message or None,
        }
        if not run.metrics:
            yield of_run | {"metric": None, "value": None}
        for name, value in sorted(run.metrics.items()):
            yield of_run | {"metric": name, "value": value}


def _statistics(study: Study) -> Iterator[_Line]:
    if study.comparison is not None:
        yield from _comparison(study.comparison)
    if study.convergence is not None:
        yield from _convergence(study.convergence)
    if study.decomposition is not None:
        yield from _decomposition(study.decomposition)


def _decomposition(decomposition: Decomposition) -> Iterator[_Line]:
    shared: _Line = {"kind": "decomposition", "resamples": decomposition.resamples}
    for group, estimates in decomposition.value.items():
        for name, estimate in estimates.items():
            yield shared | {"group": group, "metric": name} | asdict(estimate)
    for pair in decomposition.pairs:
        for name, difference in pair.difference.items():
            yield shared | {"group": pair.a, "against": pair.b, "metric": name} | asdict(difference)


def _protocols(protocols: Protocols) -> Iterator[_Line]:
    for name, values in protocols.values.items():
        for group, value in values.items():
            if value is not None:
                yield {"kind": "protocol", "group": group, "metric": name, "value": value}
        for turned in protocols.turned_by(name):
            of_pair: _Line = {"kind": "protocol pair", "group": turned.a, "against": turned.b, "metric": name}
            yield of_pair | {"p_holm": turned.p} | asdict(turned.difference)


def _comparison(comparison: Comparison) -> Iterator[_Line]:
    shared: _Line = {
        "metric": comparison.metric,
        "num_images": comparison.num_images,
        "resamples": comparison.resamples,
    }
    if comparison.num_units is not None:
        shared["num_units"] = comparison.num_units
    for group in comparison.groups:
        yield shared | {"kind": "group", "group": group} | asdict(comparison.value[group])
        for seed, estimate in comparison.value_by_seed[group].items():
            yield shared | {"kind": "seed", "group": group, "seed": seed} | asdict(estimate)
    for pair in comparison.pairs:
        of_pair = shared | {"kind": "pair", "group": pair.a, "against": pair.b} | asdict(pair.difference)
        yield of_pair | {
            "p_swap": pair.p_swap,
            "p_bootstrap": pair.p_bootstrap,
            "p_holm": pair.p_holm,
            "image_std": pair.image_std,
            "seed_std": pair.seed_std,
            "detectable": pair.detectable,
        }


def _convergence(convergence: Convergence) -> Iterator[_Line]:
    for group, points in convergence.curves.items():
        for point in points:
            yield _convergence_line(group, "AP_subset", point.metric) | {"step": point.step}
    for group, estimate in convergence.area.items():
        yield _convergence_line(group, "area", estimate)
    for pair in convergence.pairs:
        if pair.area is not None:
            yield _convergence_line(pair.a, "area", pair.area, pair.b)
    yield from _steps_to(convergence)


def _steps_to(convergence: Convergence) -> Iterator[_Line]:
    """Yield the steps to a part of the best AP: of all groups, then of all pairs."""
    for fraction, groups in convergence.steps_to.items():
        for group, steps in groups.items():
            yield _convergence_line(group, f"steps_to_{fraction:g}", steps)
    for fraction in convergence.steps_to:
        for pair in convergence.pairs:
            if fraction in pair.steps_to:
                yield _convergence_line(pair.a, f"steps_to_{fraction:g}", pair.steps_to[fraction], pair.b)


def _convergence_line(group: str, metric: str, estimate: Estimate | None, against: str | None = None) -> _Line:
    line: _Line = {"kind": "convergence", "group": group, "against": against, "metric": metric}
    return line if estimate is None else line | asdict(estimate)
