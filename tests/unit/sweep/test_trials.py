"""The journal of trials: what a kill at any point leaves, who stops early, and that nothing is proposed twice."""

import json
from pathlib import Path

import pytest

from coordexp.errors import ConfigError
from coordexp.metrics import headline, subset_headline
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.rows import Row, append_rows
from coordexp.runs.status import Begun, Ended, tell
from coordexp.runs.stop import stop_reason
from coordexp.search.trials import Trial
from coordexp.sweep.load import Sweep, load_sweep
from coordexp.sweep.trials import SweepTrials, proposed, rungs

SHIPPED = Path(__file__).parents[3] / "experiments" / "sweeps"


@pytest.fixture
def load(tmp_path):
    def make(*overrides: str, name: str = "lambda_coord") -> Sweep:
        path = SHIPPED / f"{name}.yaml"
        length = ["training.max_steps=500", "evaluation.every_steps=125"]
        return load_sweep(path, [f"experiment.runs_dir={tmp_path}", *length, *overrides])

    return make


def open_trials(sweep: Sweep) -> SweepTrials:
    ExperimentFolder.of(sweep.config).path.mkdir(parents=True, exist_ok=True)
    return SweepTrials(sweep, data={}, instance="one")


def report(trial: Trial, step: int, ap: float) -> None:
    """Do what a running trial does at an evaluation."""
    if not trial.plan.has_begun():
        tell(trial.plan.run_dir, Begun())
    metrics = {subset_headline(trial.plan.config.reading): ap}
    append_rows(trial.plan.folder.metrics, [Row(step=step, time=float(step), metrics=metrics)])


def finish(trials: SweepTrials, trial: Trial, ap: float, *, steps: int = 500) -> None:
    reading = trial.plan.config.reading
    metrics = {subset_headline(reading): ap, headline(reading): ap}
    append_rows(trial.plan.folder.metrics, [Row(step=steps, time=9.0, metrics=metrics)])
    tell(trial.plan.run_dir, Ended("finished"))
    trials.on_end(trial.plan)


def run(trials: SweepTrials, aps: dict[int, float]) -> Trial:
    """Do one trial until it is asked to stop or has all its APs."""
    trial = next(trials.remaining())
    trials.on_begin(trial.plan)
    for step, ap in aps.items():
        report(trial, step, ap)
        trials.on_look()
        if (reason := stop_reason(trial.plan.run_dir)) is not None:
            tell(trial.plan.run_dir, Ended("stopped", reason))
            trials.on_end(trial.plan)
            return trial
    finish(trials, trial, max(aps.values()))
    return trial


def states(trials: SweepTrials) -> list[str]:
    return [trial.plan.status().state for trial in trials.trials]


def test_rungs_lie_before_the_last_step(load):
    def of(grace: int | None, factor: int) -> list[int]:
        return rungs(load(f"sweep.asha.grace_steps={grace or 'null'}", f"sweep.asha.reduction_factor={factor}"))

    assert of(125, 2) == [125, 250]
    assert of(500, 2) == []
    assert of(10, 3) == [10, 30, 90, 270]
    assert of(None, 3) == [125, 375]  # from the first evaluation on
    assert rungs(load("sweep.asha.enabled=false")) == []


def test_what_falls_behind_stops_at_a_rung_and_each_rung_decides_once(load):
    trials = open_trials(load("sweep.asha.reduction_factor=2"))
    run(trials, {125: 0.30, 250: 0.20})
    run(trials, {125: 0.40, 250: 0.35})
    behind = run(trials, {125: 0.34, 250: 0.9})  # not in the better half of three
    assert (behind.plan.status().state, stop_reason(behind.plan.run_dir)) == ("pruned", None)
    assert "AP 0.3400 at step 125" in behind.plan.status().message
    assert "best 1/2" in behind.plan.status().message
    later = run(trials, {125: 0.41, 200: 0.0, 250: 0.1})  # between rungs nothing is decided
    assert "AP 0.1000 at step 250" in later.plan.status().message
    assert states(trials) == ["finished", "finished", "pruned", "pruned"]


def test_on_the_last_step_nothing_is_stopped(load):
    trials = open_trials(load("training.max_steps=250", "sweep.asha.reduction_factor=2"))
    run(trials, {125: 0.3})
    trial = next(trials.remaining())
    trials.on_begin(trial.plan)
    report(trial, 125, 0.4)
    report(trial, 250, 0.0)
    trials.on_look()
    assert stop_reason(trial.plan.run_dir) is None


def test_a_trial_that_ended_before_anybody_looked_is_not_stopped_but_counts(load):
    trials = open_trials(load("sweep.asha.reduction_factor=2"))
    run(trials, {125: 0.4})
    trial = next(trials.remaining())
    trials.on_begin(trial.plan)
    report(trial, 125, 0.1)
    finish(trials, trial, 0.5)
    assert trial.plan.status().state == "finished"
    assert run(trials, {125: 0.2}).plan.status().state == "pruned"


def test_decisions_are_the_same_whenever_they_are_taken_in_on_equal_rows(load):
    """After each commit, as the inline executor does, or some commits later, as on Ray: the first AP behind decides."""
    curves = [{125: 0.3, 250: 0.4}, {125: 0.2, 250: 0.9}, {125: 0.35, 250: 0.36}, {125: 0.5, 250: 0.41}]
    at_once = open_trials(load("sweep.name=once", "sweep.asha.reduction_factor=2"))
    for curve in curves:
        run(at_once, curve)
    late = open_trials(load("sweep.name=late", "sweep.asha.reduction_factor=2"))
    for curve in curves:
        trial = next(late.remaining())
        late.on_begin(trial.plan)
        for step, ap in curve.items():
            report(trial, step, ap)
        late.on_look()
        if (reason := stop_reason(trial.plan.run_dir)) is not None:
            tell(trial.plan.run_dir, Ended("stopped", reason))
            late.on_end(trial.plan)
        else:
            finish(late, trial, max(curve.values()))
    assert states(at_once) == states(late)
    messages = [[trial.plan.status().message for trial in trials.trials] for trials in (at_once, late)]
    assert messages[0] == messages[1]


@pytest.mark.parametrize("method", ["grid", "random", "optuna"])
def test_a_sweep_opened_anew_for_every_trial_proposes_the_same(load, method):
    number = [] if method == "grid" else [f"sweep.search.method={method}", "sweep.search.num_trials=7"]
    if method != "grid":
        number.append("sweep.space.objective.lambda_coord.num=null")

    def response(trial: Trial) -> float:
        return 0.5 - abs(trial.point["objective.lambda_coord"] - 2.0) / 100

    sweep = load(*number, "sweep.name=whole", "sweep.asha.enabled=false")
    whole = open_trials(sweep)
    while (trial := next(whole.remaining(), None)) is not None:
        whole.on_begin(trial.plan)
        finish(whole, trial, response(trial))
    sweep = load(*number, "sweep.name=parts", "sweep.asha.enabled=false")
    for _ in range(7):
        parts = open_trials(sweep)
        trial = next(parts.remaining())
        parts.on_begin(trial.plan)
        finish(parts, trial, response(trial))
    parts = open_trials(sweep)
    assert next(parts.remaining(), None) is None
    assert parts.is_searched()
    assert [trial.point for trial in parts.trials] == [trial.point for trial in whole.trials]
    assert len({json.dumps(point) for point in proposed(sweep)}) == 7


def test_after_a_kill_unfinished_trials_go_on_first_and_their_aps_count(load):
    sweep = load("sweep.asha.reduction_factor=2")
    trials = open_trials(sweep)
    run(trials, {125: 0.4})
    for trial in (trials.propose(), trials.propose()):
        tell(trial.plan.run_dir, Begun())
    behind, ahead = trials.trials[1:]
    report(behind, 125, 0.1)  # committed, and then the command was killed before it looked
    report(ahead, 125, 0.5)

    again = open_trials(sweep)

    assert states(again) == ["finished", "pruned", "running"]
    assert next(again.remaining()).name == ahead.name == "t002"
    assert run(again, {250: 0.5}).name == "t002"
    assert next(again.remaining()).name == "t003"


def test_a_decision_outlives_the_command_that_took_it(load):
    sweep = load("sweep.asha.reduction_factor=2")
    trials = open_trials(sweep)
    run(trials, {125: 0.4})
    trial = next(trials.remaining())
    trials.on_begin(trial.plan)
    report(trial, 125, 0.1)
    trials.on_look()
    assert stop_reason(trial.plan.run_dir) is not None  # killed here: the run had not noticed yet
    assert states(open_trials(sweep)) == ["finished", "pruned"]


def test_a_failed_trial_is_tried_again(load):
    sweep = load()
    trials = open_trials(sweep)
    trial = next(trials.remaining())
    trials.on_begin(trial.plan)
    tell(trial.plan.run_dir, Ended("failed", "shapes do not match"))
    trials.on_end(trial.plan)
    assert next(open_trials(sweep).remaining()).name == "t000"


def test_a_name_stands_for_one_search(load):
    sweep = load()
    trials = open_trials(sweep)
    other = load("sweep.space.objective.lambda_coord.num=3")
    assert proposed(other) == []  # nothing has begun: the name may be used for another search
    run(trials, {125: 0.4})
    with pytest.raises(ConfigError, match=r"sweep_lambda_coord .*another space.*sweep\.name=.*--fresh"):
        proposed(other)
    with pytest.raises(ConfigError, match="another group"):
        open_trials(load("sweep.group=B"))
    more = load("sweep.asha.enabled=false", "sweep.winners.num=1")
    assert len(proposed(more)) == 1
    journal = ExperimentFolder.of(sweep.config).sweep_journal
    journal.write_text("nonsense\nand more\n")
    with pytest.raises(ConfigError, match=r"trials\.jsonl: .*--fresh"):
        proposed(sweep)
