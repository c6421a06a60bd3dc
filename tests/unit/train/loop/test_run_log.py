"""Progress lines of a run, and what a checkpoint keeps of its log."""

import pytest

from coordexp.config.schema import ExperimentConfig
from coordexp.runs.folder import RunFolder
from coordexp.runs.reporter import LocalReporter
from coordexp.runs.rows import read_rows
from coordexp.train.loop.measures import StepLog
from coordexp.train.loop.run_log import TrainingLog
from coordexp.train.loop.throughput import FlopCounter
from coordexp.train.setup.weighted_terms import build_criterion

SUMS = {
    "num_coord_tokens": 8.0, "num_text_tokens": 12.0, "num_tokens": 20.0, "num_boxes": 2.0, "num_images": 4.0,
    "num_sequence_tokens": 300.0, "num_sequence_tokens_squared": 30_000.0, "num_patches": 100.0,
    "num_patches_squared": 5_000.0, "data_wait_seconds": 0.0, "num_steps": 10.0, "num_clipped": 4.0,
    "all_grad_norms": 12.0,
}  # fmt: skip


@pytest.fixture
def config(tmp_path):
    experiment = {"runs_dir": str(tmp_path), "name": "e", "group": "A", "seed": 0}
    return ExperimentConfig.model_validate({"experiment": experiment, "training": {"max_steps": 100}})


@pytest.fixture
def lines():
    return []


def log_of(config, lines):
    flops = FlopCounter(1.0, 1.0, 1.0, 1.0, 1.0, peak=1e6)
    reporter = LocalReporter(RunFolder.of(config).path)
    criterion = build_criterion(config)
    return TrainingLog(config, criterion=criterion, flops=flops, reporter=reporter, print_line=lines.append)


@pytest.fixture
def log(config, lines):
    return log_of(config, lines)


def step(number, *, waiting=0.0, loss=2.0):
    terms = ("text_ce", "coord_ce", "box_l1", "box_giou", "soft_ce", "w1", "gate")
    gradients = {f"gradient_at_hidden/{name}": 1.0 for name in terms}
    return StepLog(
        step=number, means=dict.fromkeys(terms, loss), sums=SUMS | gradients | {"data_wait_seconds": 2.0 * waiting},
        seconds=2.0, grad_norm=1.0, learning_rate=1e-3, epoch=0.5,
    )  # fmt: skip


def test_a_step_says_what_ap_was_last_by_the_boxes_that_the_run_is_compared_by(log, lines):
    log.add_evaluation(
        10, {"constrained/argmax/AP": 0.125, "constrained/expected/AP": 0.25}, num_images=4, is_final=False
    )
    log.on_step_log(step(20))
    assert "AP 0.125" in lines[-1]
    assert "0.25" not in lines[-1]


def test_lines_say_as_words_what_rows_say_as_numbers_once_they_are_committed(log, config, lines):
    log.start(["starts: one process"], step=0)
    log.on_step_log(step(10))
    log.add_evaluation(10, {"constrained/expected/AP": 0.25}, num_images=40, is_final=False)
    log.add_evaluation(10, {"constrained/expected/AP": 0.5}, num_images=400, is_final=True)
    facts_of_lines = [
        ("one process",),
        ("step 10/100", "loss 4.000", "text 2.000", "coord ce 2.000", "box 4.000", "2 img/s", "0:18"),
        ("step 10", "undefined argmax", "0.250 expected", "40 images"),
        ("final", "undefined argmax", "0.500 expected", "all 400 images"),
    ]
    for line, facts in zip(lines, facts_of_lines, strict=True):
        assert line.startswith("A-s0  ")
        assert [fact for fact in facts if fact not in line] == []
    assert read_rows(RunFolder.of(config).metrics) == []  # nothing is committed yet
    log.commit(10)
    logged, subset, final = (row.metrics for row in read_rows(RunFolder.of(config).metrics))
    assert logged["train_total_loss"] == 4.0
    assert subset == {"subset/constrained/expected/AP": 0.25}
    assert final == {"constrained/expected/AP": 0.5}


def test_waiting_for_data_is_said_once_and_not_at_the_first_logging_step(log, config, lines):
    for number, waiting in ((1, 0.9), (2, 0.02), (3, 0.35), (4, 0.35)):
        log.on_step_log(step(number, waiting=waiting))
    (warning,) = [line for line in lines if "data.num_workers" in line]
    assert "35%" in warning
    assert len(lines) == 5


def test_a_value_that_is_not_finite_is_an_alarm_and_in_no_row(log, config, lines):
    log.on_step_log(step(1, loss=float("inf")))
    (row,) = log.rows
    assert "train_total_loss" not in row.metrics
    assert row.metrics["alarms"] == 0  # of the steps before: the alarm is raised when the row is made
    (alarm,) = [line for line in lines if "ALARM at step 1:" in line and "finite" in line]
    assert "train_total_loss" in alarm


def test_a_resumed_run_has_time_and_means_of_its_checkpoint(log, config, tmp_path, lines):
    log.on_step_log(step(10))
    checkpoint = tmp_path / "scratch"
    checkpoint.mkdir()
    log.commit(10, checkpoint)
    checkpoint = RunFolder.of(config).checkpoint(10)
    assert checkpoint.training_state.is_file()

    lines.clear()
    again = log_of(config, lines)
    again.resume(checkpoint.path)
    again.start([], step=10)
    (resumed,) = lines
    assert "step 10" in resumed
    assert again.train_seconds == 2.0
    again.add_validation(10, {"text_ce": 20.0}, {"num_coord_tokens": 8.0})  # ten times the mean of training
    for fact in ("ALARM at step 10:", "text_ce is 2 ", "20 on validation"):
        assert fact in lines[-1]
    lines.clear()
    again.add_validation(10, {"text_ce": 0.001}, {"num_coord_tokens": 0.0})  # images without an object
    assert lines == []
