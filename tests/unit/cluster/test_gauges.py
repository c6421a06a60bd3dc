import logging
from itertools import product

import pytest

from coordexp.cluster import gauges
from coordexp.cluster.gauges import (
    EXPORTED,
    RUN_LABELS,
    STATES,
    QueueGauges,
    RunGauges,
    has_diverged,
    row_samples,
    run_labels,
)
from coordexp.config.schema import ExperimentConfig
from coordexp.detection.metrics import detection_metrics
from coordexp.errors import DivergedError, TrainingError
from coordexp.metrics import BOX_KINDS, DECODINGS, PLACE_MEASURES, PLACES, REGISTRY, MetricName
from coordexp.runs.plan import plan_runs
from coordexp.runs.rows import Row, append_rows
from coordexp.runs.status import RunStatus, note_traceback, one_sentence, write_status


@pytest.fixture
def plans(tmp_path):
    config = ExperimentConfig.model_validate(
        {
            "experiment": {"name": "tiny", "runs_dir": str(tmp_path)},
            "training": {"max_steps": 50},
            "ablation": {"groups": {"A": {}, "B": {}}, "seeds": [0, 1]},
        }
    )
    return plan_runs(config)


class Recorded:
    """Stands in for Ray: keeps what it gets, and refuses undeclared names and labels as Ray would."""

    def __init__(self):
        self.values = {}

    def __call__(self, sample):
        assert set(sample.labels) == set(EXPORTED[sample.name].labels), sample.name
        assert all(isinstance(value, str) for value in sample.labels.values())
        self.values[sample.name, tuple(sorted(sample.labels.items()))] = sample.value

    def of(self, name, /, **labels):
        found = [
            value
            for (exported, given), value in self.values.items()
            if exported == name and labels.items() <= dict(given).items()
        ]
        assert len(found) == 1, found
        return found[0]


@pytest.fixture
def sink(monkeypatch):
    sink = Recorded()
    monkeypatch.setattr(gauges, "to_ray", sink)
    return sink


def test_every_registered_loss_diagnostic_and_ap_is_published_once():
    shown = [
        name
        for name in REGISTRY
        if name.removeprefix("eval_").startswith(("train_", "coord_diag/")) or name.startswith(("eval_", "throughput/"))
    ]
    # A hundred diagnostics by slot and rank are recorded, and not shown live.
    by_place = {name for name in shown if name.rpartition("/")[2] in PLACES}
    assert len(by_place) == 2 * len(PLACES) * len(PLACE_MEASURES)
    assert len(row_samples(Row(1, 1.0, dict.fromkeys(by_place, 1.0)))) == 2
    shown = [name for name in shown if name not in by_place]
    shown += [
        str(MetricName(decoding, metric.name, boxes, subset=subset))
        for decoding, boxes, metric, subset in product(DECODINGS, BOX_KINDS, detection_metrics(), (False, True))
    ]
    assert len(shown) > 120
    samples = row_samples(Row(1, 1.0, dict.fromkeys(shown, 1.0)))[2:]
    keys = {(sample.name, tuple(sample.labels.items())) for sample in samples}
    assert len(keys) == len(samples) == len(shown)
    for name in ("free/argmax/AP/x", "codec_ceiling/AP", "constrained/num_objects", "epoch"):
        assert len(row_samples(Row(1, 1.0, {name: 1.0}))) == 2, name


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"num_images": 8.0, "train_total_loss": 1.0}, False),
        ({"num_images": 8.0}, True),
        ({"eval_coord_diag/coord_tokens": 8.0, "eval_total_loss": 1.0}, False),
        ({"eval_coord_diag/coord_tokens": 8.0}, True),
        ({"subset/constrained/expected/AP": 0.1}, False),
        ({"grad_norm/text_ce": 0.1}, False),
    ],
)
def test_a_row_without_its_total_loss_was_not_finite(plans, sink, metrics, expected):
    RunGauges(plans[0]).observe(Row(1, 1.0, metrics))
    assert sink.of("coordexp_nonfinite_rows") == expected


def test_a_run_publishes_start_rows_and_memory_with_the_labels_a_dashboard_asks_for(plans, sink):
    live = RunGauges(plans[0])
    run = {"experiment": "tiny", "group": "A", "seed": "0", "run": "A-s0"}
    assert sink.of("coordexp_max_steps", **run) == 50
    assert sink.of("coordexp_last_step_time_seconds", **run) > 1e9
    assert sink.of("coordexp_nonfinite_rows", **run) == 0
    losses = {"train_text_loss": 1.0, "train_extra/iou": 0.25, "eval_coord_diag/w1": 0.2, "num_images": 64.0}
    boxes = {"subset/constrained/expected/AP": 0.3, "free/argmax/F1_50": 0.7}
    live.observe(Row(8, 1000.5, losses | boxes))
    assert sink.of("coordexp_step", **run) == 8
    assert sink.of("coordexp_loss", phase="train", term="text", **run) == 1.0
    assert sink.of("coordexp_loss", phase="train", term="iou", **run) == 0.25
    assert sink.of("coordexp_coord_diag", phase="eval", name="w1") == 0.2
    assert sink.of("coordexp_ap", images="subset", decoding="constrained", boxes="expected", metric="AP") == 0.3
    assert sink.of("coordexp_detection", images="all", decoding="free", boxes="argmax", metric="F1_50") == 0.7
    assert sink.of("coordexp_nonfinite_rows", **run) == 1
    assert sink.of("coordexp_memory_bytes", kind="allocated", device="cpu", **run) > 2**20


def test_what_cannot_be_published_stops_no_run_and_warns_once(plans, caplog, monkeypatch):
    calls = []

    def broken(sample):
        calls.append(sample)
        raise RuntimeError("the agent is gone")

    monkeypatch.setattr(gauges, "to_ray", broken)
    gauges.HAS_WARNED.clear()
    with caplog.at_level(logging.WARNING):
        live = RunGauges(plans[0])
        live.observe(Row(7, 1000.5, {"num_images": 64.0}))
    assert [sample.name for sample in calls][:2] == ["coordexp_max_steps", "coordexp_step"]
    assert [record.getMessage() for record in caplog.records] == [
        "live metrics are incomplete, the run continues: RuntimeError: the agent is gone"
    ]


def test_a_device_that_cannot_be_asked_costs_no_row(plans, sink, monkeypatch):
    def gone():
        raise OSError("no such device")
        yield

    monkeypatch.setattr(gauges, "memory_samples", gone)
    RunGauges(plans[0]).observe(Row(8, 1000.5, {"train_text_loss": 1.0}))
    assert sink.of("coordexp_step") == 8


@pytest.mark.parametrize(
    ("error", "diverged"), [(DivergedError("step 3: loss is nan"), True), (TrainingError("x"), False)]
)
def test_a_diverged_run_is_distinguished_from_another_failure(plans, error, diverged):
    plan = plans[0]
    plan.run_dir.mkdir(parents=True)
    try:
        raise error
    except TrainingError as caught:
        note_traceback(plan.run_dir)
        status = RunStatus("failed", message=one_sentence(caught))
    assert has_diverged(plan, status) is diverged


def test_the_queue_is_followed_until_the_end_and_what_a_command_before_left_waits(plans, sink):
    for plan, state in zip(plans, ("running", "failed", "finished", "stopped"), strict=True):
        write_status(plan.run_dir, RunStatus(state))
    with QueueGauges("tiny", lambda: plans, every_seconds=60) as queue:
        queue.publish()
        assert [sink.of("coordexp_runs", state=state) for state in STATES] == [3, 0, 1, 0, 0, 0]
        write_status(plans[0].run_dir, RunStatus("finished"))
        write_status(plans[1].run_dir, RunStatus("failed", message="no", restarts=2))
    assert sink.of("coordexp_run_state", **run_labels(plans[0])) == STATES.index("finished")
    assert sink.of("coordexp_run_state", **run_labels(plans[1])) == STATES.index("failed")
    assert sink.of("coordexp_run_diverged", **run_labels(plans[1])) == 0
    assert sink.of("coordexp_restarts", **run_labels(plans[1])) == 2
    assert [sink.of("coordexp_runs", state=state) for state in STATES] == [1, 0, 2, 1, 0, 0]
    assert sink.of("coordexp_ablation_seconds", experiment="tiny") >= 0


def test_the_final_ap_of_a_finished_run_outlives_its_worker(plans, sink):
    plan = plans[0]
    rows = [
        Row(50, 1.0, {"subset/constrained/argmax/AP": 0.1}),
        Row(50, 2.0, {"constrained/argmax/AP": 0.4, "constrained/argmax/AP50": 0.5}),
        Row(50, 3.0, {"final/steps": 50.0}),
    ]
    append_rows(plan.run_dir / "metrics.jsonl", rows)
    queue = QueueGauges("tiny", lambda: plans)
    write_status(plan.run_dir, RunStatus(state="running"))
    queue.publish()
    assert not [name for name, _ in sink.values if name == "coordexp_ap"]
    write_status(plan.run_dir, RunStatus(state="finished"))
    queue.publish()
    assert sink.of("coordexp_ap", metric="AP", images="all", run="A-s0") == 0.4
    sink.values.clear()
    queue.publish()  # once
    assert not [name for name, _ in sink.values if name == "coordexp_ap"]


def test_a_sample_names_its_run_or_its_experiment():
    assert len({metric.name for metric in EXPORTED.values()}) == len(EXPORTED)
    for metric in EXPORTED.values():
        assert set(RUN_LABELS) <= set(metric.labels) or metric.labels[0] == "experiment"
