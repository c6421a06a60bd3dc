"""A study for programs, with every digit: CSV and JSON of all of it, and the numbers of a comparison alone."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from coordexp.detection.metrics import detection_metrics
from coordexp.metrics import MetricName
from coordexp.report.study.data import ExperimentData, RunRecord
from coordexp.report.study.study import Study, rendered_parts
from coordexp.report.text.notes import study_notes
from coordexp.report.text.tables import means
from coordexp.statistics.power import further
from coordexp.statistics.protocols import Protocols
from coordexp.statistics.readings import reads
from coordexp.statistics.results import Comparison, Convergence, Estimate
from coordexp.tracking.address import without_secrets

COLUMNS: tuple[str, ...] = (
    "experiment", "kind", "group", "against", "seed", "state", "step", "run_id", "metric", "value", "low", "high",
    "p_swap", "p_bootstrap", "p_holm", "image_std", "seed_std", "detectable", "num_images", "resamples", "message",
    "reading", "num_units", "slice",
)  # fmt: skip
_TESTS = ("p_swap", "p_bootstrap", "p_holm", "image_std", "seed_std", "detectable")
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
    lines += [] if study.protocols is None else _protocols(study.protocols)
    for _, shown in rendered_parts(study):
        lines += [dict(line) for line in shown.csv_lines]
    for name, comparison in study.readings.items():
        if name != "own":
            lines += [line | {"kind": f"{line['kind']} reading", "reading": name} for line in _comparison(comparison)]
    writer.writerows({"experiment": study.data.name} | line for line in lines)
    return out.getvalue()


def to_json(study: Study) -> str:
    """Return the runs by group with means over seeds, the statistics and the fairness table, as JSON."""
    data, fairness = study.data, study.fairness
    whole = {
        "experiment": data.name,
        "uri": without_secrets(data.uri),
        "verdict": study.verdict,
        "codec_ceiling": data.codec_ceiling,
        "groups": {group: {"mean": means(runs), "runs": list(map(_run, runs))} for group, runs in data.groups.items()},
        "statistics": list(_statistics(study)),
        "readings": {
            name: {
                "decoding": reads(name, "expected")[0],
                "boxes": {group: reads(name, data.readings[group])[1] for group in comparison.groups},
                "statistics": list(_comparison(comparison)),
            }
            for name, comparison in study.readings.items()
        },
        "further": further_records(study),
        "protocols": protocol_record(study.protocols),
        **part_records(study),
        "fairness": fairness
        and {
            "comparable": fairness.comparable,
            "factor": list(fairness.factor),
            "differences": [
                {"key": row.key, "declared": row.declared, "values": dict(row.values)} for row in fairness.rows
            ],
            "without_fingerprint": list(fairness.unchecked),
        },
        "missing": list(study.missing),
        "notes": study_notes(study),
    }
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_numbers(comparison: Comparison, data: ExperimentData, parts: Mapping[str, object] | None = None) -> str:
    """Return what a program wants of a comparison as JSON: each group's metrics, means over seeds, and each pair.

    ``parts`` are further keys with their values, such as those of :func:`part_records`.
    """
    groups: dict[str, object] = {}
    for group in comparison.groups:
        own, logged, reading = comparison.value[group], means(data.groups[group]), data.readings[group]
        names = {metric.name: str(MetricName("constrained", metric.name, reading)) for metric in detection_metrics()}
        others = {name: logged[key] for name, key in names.items() if key in logged and name != comparison.metric}
        groups[group] = {comparison.metric: own.value, "interval": [own.low, own.high], **others}
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
    whole: dict[str, object] = {"groups": groups, "pairs": pairs}
    if comparison.num_units is not None:
        whole["sample"] = {"images": comparison.num_images, "units": comparison.num_units}
    whole |= parts or {}
    return json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def further_records(study: Study) -> list[dict[str, object]]:
    """Return for each pair what two more seeds, and twice the images or units, would detect."""
    found = study.comparison
    records: list[dict[str, object]] = []
    if found is None:
        return records
    for pair in found.pairs:
        lead: dict[str, object] = {"group": pair.a, "against": pair.b, "detectable": pair.detectable}
        records.append(lead | asdict(further(pair, found.drawn_units)))
    return records


def protocol_record(found: Protocols | None) -> dict[str, object] | None:
    """Return what each protocol gives as JSON, and the pairs that it turns round."""
    if found is None:
        return None
    record: dict[str, object] = {}
    for name, values in found.values.items():
        turned = [asdict(pair) for pair in found.turned_by(name)]
        record[name] = {"groups": dict(values), "ranking": found.ranking(name), "turned": turned}
    return record


def part_records(study: Study) -> dict[str, object]:
    """Return the listed parts as JSON, by their names."""
    return {part.name: shown.record for part, shown in rendered_parts(study)}


def _run(run: RunRecord) -> dict[str, object]:
    names = ("seed", "state", "step", "message", "run_id", "hardware")
    return {**{name: getattr(run, name) for name in names}, "metrics": dict(run.metrics)}


def _run_lines(study: Study) -> Iterator[_Line]:
    for run in study.data.runs:
        names = ("group", "seed", "state", "step", "run_id")
        lead = {"kind": "run", **{name: getattr(run, name) for name in names}, "message": run.message or None}
        # A run without numbers is still a line: it says where it stands.
        for name, value in sorted(run.metrics.items()) or [(None, None)]:
            yield lead | {"metric": name, "value": value}


def _statistics(study: Study) -> Iterator[_Line]:
    if study.comparison is not None:
        yield from _comparison(study.comparison)
    if study.convergence is not None:
        yield from _convergence(study.convergence)
    if (found := study.decomposition) is not None:
        common: _Line = {"kind": "decomposition", "resamples": found.resamples}
        for group, values in found.value.items():
            yield from (common | {"group": group, "metric": name} | asdict(it) for name, it in values.items())
        for pair in found.pairs:
            lead = common | {"group": pair.a, "against": pair.b}
            yield from (lead | {"metric": name} | asdict(it) for name, it in pair.difference.items())


def _protocols(found: Protocols) -> Iterator[_Line]:
    for name, values in found.values.items():
        for group, value in values.items():
            if value is not None:
                yield {"kind": "protocol", "group": group, "metric": name, "value": value}
        for turned in found.turned_by(name):
            lead: _Line = {"kind": "protocol pair", "group": turned.a, "against": turned.b, "metric": name}
            yield lead | {"p_holm": turned.p} | asdict(turned.difference)


def _comparison(found: Comparison) -> Iterator[_Line]:
    common: _Line = {"metric": found.metric, "num_images": found.num_images, "resamples": found.resamples}
    if found.num_units is not None:
        common["num_units"] = found.num_units
    for group in found.groups:
        yield common | {"kind": "group", "group": group} | asdict(found.value[group])
        for seed, estimate in found.value_by_seed[group].items():
            yield common | {"kind": "seed", "group": group, "seed": seed} | asdict(estimate)
    for pair in found.pairs:
        lead = common | {"kind": "pair", "group": pair.a, "against": pair.b} | asdict(pair.difference)
        yield lead | {name: getattr(pair, name) for name in _TESTS}


def _convergence(found: Convergence) -> Iterator[_Line]:
    def line(group: str, metric: str, estimate: Estimate | None, against: str | None = None) -> _Line:
        lead: _Line = {"kind": "convergence", "group": group, "against": against, "metric": metric}
        return lead if estimate is None else lead | asdict(estimate)

    for group, points in found.curves.items():
        yield from (line(group, "AP_subset", point.metric) | {"step": point.step} for point in points)
    yield from (line(group, "area", estimate) for group, estimate in found.area.items())
    yield from (line(pair.a, "area", pair.area, pair.b) for pair in found.pairs if pair.area is not None)
    for fraction, groups in found.steps_to.items():
        yield from (line(group, f"steps_to_{fraction:g}", estimate) for group, estimate in groups.items())
    for fraction in found.steps_to:
        pairs = [pair for pair in found.pairs if fraction in pair.steps_to]
        yield from (line(pair.a, f"steps_to_{fraction:g}", pair.steps_to[fraction], pair.b) for pair in pairs)
