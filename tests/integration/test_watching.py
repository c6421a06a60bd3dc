"""What a run says of itself: its groups, its terms' gradients, its alarms, and why it stopped."""

import math

import pytest
import torch

from coordexp.config.schema.objective import ExtraTerm
from coordexp.errors import TrainingError
from coordexp.losses.term import Term
from coordexp.losses.terms import loss_terms
from coordexp.metrics import PLACE_MEASURES, RANKS, SLOTS
from coordexp.runs.folder import RunFolder
from coordexp.runs.reporter import LocalReporter, committed_checkpoints, read_rows
from coordexp.train.loop.messages import start_lines
from coordexp.train.run import TrainingRun, make_trainer
from coordexp.train.setup import weighted_terms
from coordexp.train.setup.components import build_components
from tests.support.training import prepared, small_config, train_here, with_changes

pytestmark = pytest.mark.ci  # its parts are tested in tests/unit/train/loop


def _with_term(monkeypatch, config, compute):
    """Return ``config`` with a planted term that is on: ``compute`` of ``log_z_T``."""

    class Planted(Term):
        name = "planted"
        unit = "tokens"
        formula = "none"

        def total(self, inputs):
            return compute(inputs.head.log_z_T)

    monkeypatch.setattr(weighted_terms, "loss_terms", lambda: loss_terms() | {"planted": Planted})
    extra = {"planted": ExtraTerm(weight=1.0)}
    return with_changes(config, objective={"extra": extra})


def _run(config, lines):
    reporter = LocalReporter(RunFolder.of(config).path)
    return TrainingRun.of(config, build_components(config), reporter=reporter, print_line=lines.append)


class _Explodes:
    """A term that is finite but in one call; then infinite, with a gradient that is too, or is not."""

    def __init__(self, at_call, *, gradient=True):
        self.calls, self.at_call, self.gradient = 0, at_call, gradient

    def __call__(self, log_z_T):
        self.calls += 1
        size = math.inf if self.calls == self.at_call else 0.0
        return (log_z_T * size).sum() if self.gradient else log_z_T.sum() * 0 + size


@pytest.mark.parametrize("gradient", [True, False])
def test_a_loss_that_is_not_finite_stops_the_run_before_the_optimizer_moves(base, tmp_path, monkeypatch, gradient):
    config = prepared(small_config(base, tmp_path, logging_steps=10))
    config = _with_term(monkeypatch, config, _Explodes(at_call=1, gradient=gradient))
    run = _run(config, [])
    before = {name: p.detach().clone() for name, p in run.parts.model.named_parameters()}
    with pytest.raises(TrainingError, match=r"^step 1: .*\bplanted\b.*\b\d+, \d+, \d+, \d+;"):
        make_trainer(run, tmp_path / "scratch").train()
    for name, parameter in run.parts.model.named_parameters():
        assert torch.equal(parameter, before[name]), name


def test_a_fused_run_goes_on_from_a_checkpoint_of_one_that_was_not(base, tmp_path, monkeypatch):
    config = prepared(small_config(base, tmp_path, max_steps=2))
    train_here(config)
    (checkpoint,) = committed_checkpoints(RunFolder.of(config).path)
    monkeypatch.setattr("coordexp.train.trainer.steps_on_device", lambda arguments: True)
    longer = small_config(base, tmp_path, max_steps=3)
    trainer = make_trainer(_run(longer, []), tmp_path / "scratch")
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert [group["fused"] for group in trainer.optimizer.param_groups] == [True] * len(trainer.optimizer.param_groups)
    assert {float(state["step"]) for state in trainer.optimizer.state.values()} == {3.0}


def test_the_checkpoint_before_is_kept(base, tmp_path, monkeypatch):
    # Two calls in a step: every step is a logging step, which looks at the terms twice.
    config = _with_term(monkeypatch, prepared(small_config(base, tmp_path, max_steps=5)), _Explodes(at_call=7))
    with pytest.raises(TrainingError, match="^step 4: "):
        train_here(config)
    assert [path.name for path in committed_checkpoints(RunFolder.of(config).path)] == ["step_000002"]
    # The rows up to the end show how it came about, also those after the checkpoint.
    assert [row.step for row in read_rows(RunFolder.of(config).metrics)] == [1, 2, 3]


def test_a_validation_value_that_is_not_finite_is_left_out_and_said(base, tmp_path, monkeypatch):
    def compute(log_z_T):
        return log_z_T.sum() * 0 + (0.0 if torch.is_grad_enabled() else math.inf)

    config = _with_term(monkeypatch, prepared(small_config(base, tmp_path)), compute)
    lines = []
    make_trainer(_run(config, lines), tmp_path / "scratch").train()
    (said,) = [line for line in lines if "not finite" in line]
    assert said.startswith("C-s0  ALARM at step 4: not finite, and left out of the record: eval_extra/planted, eval_t")
    assert [path.name for path in committed_checkpoints(RunFolder.of(config).path)] == ["step_000002", "step_000004"]


def test_an_alarm_of_the_last_validation_is_counted(base, tmp_path):
    config = prepared(small_config(base, tmp_path, alarm_factor=1.0001))
    lines = []
    make_trainer(_run(config, lines), tmp_path / "scratch").train()
    num_alarms = sum("apart: overfitting" in line for line in lines)
    rows = [row.metrics for row in read_rows(RunFolder.of(config).metrics) if "alarms" in row.metrics]
    assert num_alarms > 0
    assert rows[-1]["alarms"] == num_alarms


def test_training_and_validation_log_the_same_names_in_every_group(base, tmp_path):
    names = {}
    for group in ("A", "B", "C"):
        config = prepared(small_config(base, tmp_path / group, group=group, max_steps=2, checkpoint_steps=2))
        make_trainer(_run(config, []), tmp_path / f"scratch-{group}").train()
        rows = read_rows(RunFolder.of(config).metrics)
        # Which ranks an answer has depends on the images that are looked at.
        found = {name for row in rows for name in row.metrics if name.rpartition("/")[2] not in RANKS}
        train = {name for name in found if name.startswith(("train_", "coord_diag/"))}
        evaluated = {name for name in found if name.startswith(("eval_", "eval_coord_diag/"))}
        assert {name.replace("train_", "eval_").replace("coord_diag", "eval_coord_diag") for name in train} == evaluated
        names[group] = train
    assert names["A"] == names["B"] == names["C"]
    assert len(names["A"]) == 19 + len(PLACE_MEASURES) * len(SLOTS)


def test_a_term_without_gradient_raises_an_alarm_that_is_counted(base, tmp_path, monkeypatch):
    config = prepared(small_config(base, tmp_path, alarm_patience=2))
    config = _with_term(monkeypatch, config, lambda log_z_T: log_z_T.detach().sum())
    lines = []
    run = _run(config, lines)
    make_trainer(run, tmp_path / "scratch").train()
    alarms = [line for line in lines if "ALARM" in line]
    assert alarms == [
        "C-s0  ALARM at step 2: the term planted is on (weight 1) but had zero gradient in the last 2 logging steps"
    ]
    rows = [row for row in read_rows(RunFolder.of(config).metrics) if "alarms" in row.metrics]
    # The last one is validation's.
    assert [(row.step, row.metrics["alarms"]) for row in rows] == [(1, 0.0), (2, 1.0), (3, 1.0), (4, 1.0), (4, 1.0)]


def _norms(config, scratch):
    run = _run(config, [])
    make_trainer(run, scratch).train()
    rows = read_rows(RunFolder.of(config).metrics)
    found = {
        row.step: values
        for row in rows
        if (values := {name: value for name, value in row.metrics.items() if name.startswith("grad_norm/")})
    }
    return found, {row.step: row.metrics["grad_norm"] for row in rows if "grad_norm" in row.metrics}


def test_term_gradients_on_request_do_not_depend_on_accumulation(base, tmp_path):
    settings = {"log_term_gradients": 2, "max_steps": 2, "learning_rate": 1e-6}
    whole = prepared(small_config(base, tmp_path / "a", per_device_batch_size=8, **settings))
    halves = prepared(
        small_config(base, tmp_path / "b", per_device_batch_size=2, gradient_accumulation_steps=4, **settings)
    )
    expected, total = _norms(whole, tmp_path / "scratch-a")
    found, _ = _norms(halves, tmp_path / "scratch-b")
    assert list(expected) == [2]
    assert set(expected[2]) == {f"grad_norm/{name}" for name in ("text_ce", "coord_ce", "box_l1", "box_giou")}
    assert found[2] == pytest.approx(expected[2], rel=1e-3)
    # The whole gradient is the sum of the terms' gradients: no longer than all, no shorter than what is left.
    lengths = sorted(expected[2].values())
    assert lengths[-1] - sum(lengths[:-1]) <= total[2] <= sum(lengths)


def test_clipped_steps_are_counted_at_every_step_also_between_rows_and_across_a_resume(base, tmp_path):
    limit = 2.27
    each = prepared(small_config(base, tmp_path / "each", max_grad_norm=limit))
    _, norms = _norms(each, tmp_path / "scratch-each")
    shares = [row.metrics["clipped_fraction"] for row in _rows_with(each, "clipped_fraction")]
    expected = [sum(norm > limit for norm in list(norms.values())[:at]) / at for at in range(1, 5)]
    assert 0 < expected[-1] < 1, f"the limit must part these norms: {norms}"
    assert shares == pytest.approx(expected)
    rare = prepared(small_config(base, tmp_path / "rare", max_grad_norm=limit, logging_steps=3))
    train_here(rare, stop=2)
    assert _rows_with(rare, "clipped_fraction") == []
    train_here(rare)
    first, last = _rows_with(rare, "clipped_fraction")
    assert (first.step, first.metrics["clipped_fraction"]) == (3, pytest.approx(expected[2]))
    assert last.metrics["clipped_fraction"] == pytest.approx(expected[3])
    assert last.metrics["mean_grad_norm"] == pytest.approx(sum(norms.values()) / 4, rel=1e-5)


def _rows_with(config, name):
    return [row for row in read_rows(RunFolder.of(config).metrics) if name in row.metrics]


def test_rows_that_join_the_adapter_are_printed(base, tmp_path):
    spec = prepared(with_changes(small_config(base, tmp_path, max_steps=1), data={"structure": "spec"}))
    run = _run(spec, [])
    trainer = make_trainer(run, tmp_path / "scratch")
    limits = run.parts.encoding.box_limits(trainer.samples, run.parts.train.samples, run.parts.val.samples)
    lines = start_lines(spec, run.parts, trainer.samples, trainer.sampler, limits)
    assert any("the rows of the added object tokens" in line for line in lines)
    assert not any("parameters train in" in line for line in lines), "all that trains is in float32"
