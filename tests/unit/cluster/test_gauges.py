import logging
from itertools import product

import pytest

from coordexp.cluster.gauges import (
    EXPORTED,
    RUN_LABELS,
    STATES,
    GaugeSample,
    QueueMetrics,
    RunMetrics,
    final_samples,
    has_diverged,
    memory_samples,
    row_samples,
    run_labels,
    run_samples,
    state_of,
)
from coordexp.config.schema import ExperimentConfig
from coordexp.detection.metrics import detection_metrics
from coordexp.errors import DivergedError, TrainingError
from coordexp.metrics import BOX_KINDS, DECODINGS, REGISTRY, MetricName
from coordexp.runs.plan import plan_runs
from coordexp.runs.rows import Row, append_rows
from coordexp.runs.status import RunStatus, note_traceback, one_sentence, write_status

TRAIN_ROW = Row(
    step=7,
    time=1000.5,
    metrics={
        "train_total_loss": 3.0,
        "train_text_loss": 1.0,
        "train_coord_loss": 0.5,
        "train_coord_ce_loss": 1.5,
        "train_extra/iou": 0.25,
        "eval_total_loss": 4.0,
        "coord_diag/w1": 0.1,
        "eval_coord_diag/w1": 0.2,
        "subset/constrained/expected/AP": 0.3,
        "free/argmax/AP50": 0.6,
        "free/argmax/F1_50": 0.7,
        "throughput/images_per_second": 11.0,
        "throughput/mfu": 0.4,
        "alarms": 2.0,
        "num_images": 64.0,
    },
)


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
    """A sink that keeps what it gets, and refuses undeclared names and labels as Ray would."""

    def __init__(self):
        self.values = {}

    def __call__(self, sample, labels):
        assert set(labels) == set(EXPORTED[sample.name].labels), sample.name
        assert all(isinstance(value, str) for value in labels.values())
        self.values[sample.name, tuple(sorted(labels.items()))] = sample.value

    def of(self, name, **labels):
        found = [
            value
            for (exported, given), value in self.values.items()
            if exported == name and labels.items() <= dict(given).items()
        ]
        assert len(found) == 1, found
        return found[0]


def test_a_row_becomes_samples_with_the_labels_a_dashboard_asks_for():
    samples = row_samples(TRAIN_ROW)
    assert GaugeSample("coordexp_step", 7) in samples
    assert GaugeSample("coordexp_last_step_time_seconds", 1000.5) in samples
    assert GaugeSample("coordexp_images_per_second", 11.0) in samples
    assert GaugeSample("coordexp_mfu", 0.4) in samples
    assert GaugeSample("coordexp_alarms", 2.0) in samples
    losses = {(s.labels["phase"], s.labels["term"]): s.value for s in samples if s.name == "coordexp_loss"}
    assert losses == {
        ("train", "total"): 3.0,
        ("train", "text"): 1.0,
        ("train", "coord"): 0.5,
        ("train", "coord_ce"): 1.5,
        ("train", "iou"): 0.25,
        ("eval", "total"): 4.0,
    }
    diagnostics = {s.labels["phase"]: s.value for s in samples if s.name == "coordexp_coord_diag"}
    assert diagnostics == {"train": 0.1, "eval": 0.2}
    assert [s for s in samples if s.name == "coordexp_ap"] == [
        GaugeSample(
            "coordexp_ap", 0.3, {"images": "subset", "decoding": "constrained", "boxes": "expected", "metric": "AP"}
        ),
        GaugeSample("coordexp_ap", 0.6, {"images": "all", "decoding": "free", "boxes": "argmax", "metric": "AP50"}),
    ]
    assert [s for s in samples if s.name == "coordexp_detection"] == [
        GaugeSample(
            "coordexp_detection", 0.7, {"images": "all", "decoding": "free", "boxes": "argmax", "metric": "F1_50"}
        )
    ]


def test_every_registered_loss_diagnostic_and_ap_is_published_once():
    shown = [
        name
        for name in REGISTRY
        if name.removeprefix("eval_").startswith(("train_", "coord_diag/")) or name.startswith(("eval_", "throughput/"))
    ]
    shown += [
        str(MetricName(decoding, metric.name, boxes, subset=subset))
        for decoding, boxes, metric, subset in product(DECODINGS, BOX_KINDS, detection_metrics(), (False, True))
    ]
    assert len(shown) > 120
    samples = row_samples(Row(1, 1.0, dict.fromkeys(shown, 1.0)))[2:]
    keys = {(sample.name, tuple(sample.labels.items())) for sample in samples}
    assert len(keys) == len(samples) == len(shown)
    for name in ("best/subset/free/argmax/AP", "codec_ceiling/AP", "constrained/num_objects", "epoch"):
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
def test_a_row_without_its_total_loss_was_not_finite(plans, metrics, expected):
    sink = Recorded()
    RunMetrics(plans[0], sink=sink).observe(Row(1, 1.0, metrics))
    assert sink.of("coordexp_nonfinite_rows") == expected


def test_a_run_publishes_start_rows_memory_and_waiting(plans):
    sink = Recorded()
    live = RunMetrics(plans[0], sink=sink)
    run = {"experiment": "tiny", "group": "A", "seed": "0", "run": "A-s0"}
    assert sink.of("coordexp_max_steps", **run) == 50
    assert sink.of("coordexp_last_step_time_seconds", **run) > 1e9
    assert sink.of("coordexp_nonfinite_rows", **run) == 0
    live.observe(TRAIN_ROW)
    live.observe(Row(8, 1001.0, {"num_images": 64.0}))
    live.waited(0.0)  # a counter takes no zero
    live.waited(1.5)
    assert sink.of("coordexp_step", **run) == 8
    assert sink.of("coordexp_loss", phase="train", term="text", **run) == 1.0
    assert sink.of("coordexp_nonfinite_rows", **run) == 1
    assert sink.of("coordexp_report_wait_seconds", **run) == 1.5
    assert sink.of("coordexp_memory_bytes", kind="allocated", device="cpu", **run) > 2**20


def test_memory_on_cpu_is_of_this_process():
    values = {sample.labels["kind"]: sample.value for sample in memory_samples()}
    assert set(values) == {"allocated", "reserved", "peak", "limit"}
    assert 2**20 < values["allocated"] <= values["peak"] * 1.1
    assert values["peak"] < values["limit"]


def test_what_cannot_be_published_stops_no_run_and_warns_once(plans, caplog):
    calls = []

    def broken(sample, labels):
        calls.append(sample)
        raise RuntimeError("the agent is gone")

    with caplog.at_level(logging.WARNING):
        live = RunMetrics(plans[0], sink=broken)
        live.observe(TRAIN_ROW)
        live.waited(1.0)
    assert len(calls) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "live metrics are incomplete, the run goes on: RuntimeError: the agent is gone"
    ]


def test_a_bug_of_ours_is_not_swallowed(plans):
    def buggy(sample, labels):
        raise AssertionError("not what publishing may meet")

    with pytest.raises(AssertionError):
        RunMetrics(plans[0], sink=buggy)


def test_states_come_from_status_files(plans):
    first, second, third, _ = plans
    write_status(first.run_dir, RunStatus(state="running"))
    write_status(second.run_dir, RunStatus(state="finished"))
    write_status(third.run_dir, RunStatus(state="failed", message="no"))
    assert [state_of(plan, plan.status()) for plan in plans] == ["running", "finished", "failed", "waiting"]
    values = {sample.name: sample.value for sample in run_samples(third, third.status(), "failed")}
    assert values == {"coordexp_run_state": 3, "coordexp_restarts": 0, "coordexp_run_diverged": 0}


def test_what_an_earlier_command_left_waits_again(plans):
    for plan, state in zip(plans, ("running", "failed", "finished", "stopped"), strict=True):
        write_status(plan.run_dir, RunStatus(state=state))
    written = (plans[0].run_dir / "status.json").stat().st_mtime

    def states(since: float) -> list[str]:
        return [state_of(plan, plan.status(), since=since) for plan in plans]

    assert states(written + 60) == ["waiting", "waiting", "finished", "waiting"]
    assert states(written) == ["running", "failed", "finished", "stopped"]


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


def test_the_queue_is_followed_until_the_end(plans):
    sink = Recorded()
    with QueueMetrics("tiny", lambda: plans, sink=sink, every_seconds=60):
        write_status(plans[0].run_dir, RunStatus(state="finished"))
    assert sink.of("coordexp_run_state", **run_labels(plans[0])) == STATES.index("finished")
    counted = [sink.of("coordexp_runs", state=state) for state in STATES]
    assert counted == [3, 0, 1, 0, 0, 0]
    assert sink.of("coordexp_ablation_seconds", experiment="tiny") >= 0


def test_the_final_ap_of_a_finished_run_outlives_its_worker(plans):
    plan, sink = plans[0], Recorded()
    rows = [
        Row(50, 1.0, {"subset/constrained/argmax/AP": 0.1}),
        Row(50, 2.0, {"constrained/argmax/AP": 0.4, "constrained/argmax/AP50": 0.5}),
        Row(50, 3.0, {"final/steps": 50.0}),
    ]
    append_rows(plan.run_dir / "metrics.jsonl", rows)
    queue = QueueMetrics("tiny", lambda: plans, sink=sink)
    write_status(plan.run_dir, RunStatus(state="running"))
    queue.publish()
    assert not [name for name, _ in sink.values if name == "coordexp_ap"]
    write_status(plan.run_dir, RunStatus(state="finished"))
    queue.publish()
    assert sink.of("coordexp_ap", metric="AP", images="all", run="A-s0") == 0.4
    sink.values.clear()
    queue.publish()
    assert not [name for name, _ in sink.values if name == "coordexp_ap"]
    assert final_samples(plans[1]) == []


def test_names_are_prometheus_names():
    assert len({metric.prometheus_name for metric in EXPORTED.values()}) == len(EXPORTED)
    for metric in EXPORTED.values():
        assert metric.prometheus_name.startswith("ray_coordexp_")
        assert set(RUN_LABELS) <= set(metric.labels) or metric.labels[0] == "experiment"
