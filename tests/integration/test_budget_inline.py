"""Stops and budgets through the whole ablation command, without Ray and with a stand-in for the trainer core."""

import re
import time

import pytest

from coordexp.report.records.load import load_experiment
from coordexp.runs.folder import RunFolder
from coordexp.runs.plan import plan_runs
from coordexp.runs.stop import RunStoppedError, stop_reason
from coordexp.tracking.publish import tracking_uri
from tests.support.ablation import StandIn, make_config, run

pytestmark = [pytest.mark.ci, pytest.mark.timeout(240), pytest.mark.usefixtures("undrawn")]
HOUR = 3600.0


class _Clock:
    """Stands in for the module ``time``: hours pass only when a stand-in says so."""

    def __init__(self) -> None:
        self.seconds = 1e6

    def time(self) -> float:
        return self.seconds

    monotonic = time


@pytest.fixture
def clock(monkeypatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr("coordexp.runs.status.time", clock)
    monkeypatch.setattr("coordexp.runs.budget.time", clock)
    return clock


class _TakesAnHour(StandIn):
    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self.clock = clock
        self.names: list[str] = []

    def __call__(self, config, *, reporter, print_line):
        self.names.append(RunFolder.of(config).name)
        super().__call__(config, reporter=reporter, print_line=print_line)
        self.clock.seconds += HOUR


class _EndsWhenAsked(StandIn):
    """Commits nothing but that time has passed, until it is asked to stop."""

    def __call__(self, config, *, reporter, print_line):
        self.done.append(RunFolder.of(config).name)
        while (reason := stop_reason(RunFolder.of(config).path)) is None:
            time.sleep(0.01)
            reporter.commit([], step=0, checkpoint=None)
        raise RunStoppedError(reason)


def recorded(config) -> dict[str, tuple[str, str]]:
    data = load_experiment(tracking_uri(config), config.experiment.name)
    return {run.name: (run.state, run.message) for run in data.runs}


def budget(config, hours):
    return type(config)(**dict(config) | {"cluster": config.cluster.model_copy(update={"max_gpu_hours": hours})})


def test_a_budget_ends_where_it_is_spent_with_whole_seeds_in_the_report_and_a_larger_one_goes_on(base, runs_dir, clock):
    config = make_config(base, runs_dir, "budget")
    config = type(config)(**dict(config) | {"ablation": config.ablation.model_copy(update={"seeds": (0, 1, 2)})})
    function = _TakesAnHour(clock)
    code, text = run(budget(config, 5.0), function)
    assert (code, function.names) == (3, ["A-s0", "C-s0", "A-s1", "C-s1", "A-s2"])
    reason = "the budget of 5 CPU hours is spent"
    assert f"C-s2  not begun: {reason}" in text
    assert "cluster.max_gpu_hours" in text.rstrip().splitlines()[-1]
    assert re.search(r"\b5 of 5 CPU hours\b.*\b1 of 6 runs\b", text)
    assert "0.250" in text  # the report of the whole seeds
    found = recorded(config)
    assert found["C-s1"][0] == "finished"
    assert found["C-s2"] == ("stopped", reason)
    assert not plan_runs(config)[-1].has_begun()

    function = _TakesAnHour(clock)
    code, text = run(budget(config, 6.5), function)
    assert (code, function.names) == (0, ["C-s2"])
    assert {state for state, _ in recorded(config).values()} == {"finished"}


def test_time_that_passes_stops_a_running_run(base, runs_dir):
    config = budget(make_config(base, runs_dir, "timed"), 0.2 / HOUR)
    function = _EndsWhenAsked()
    code, text = run(config, function)
    assert (code, function.done) == (3, ["A-s0"])
    assert "A-s0  stopped at step 0" in text
    assert re.search(r"C-s0  not begun: .*\b5\.55556e-05 CPU hours\b", text)
    assert {state for state, _ in recorded(config).values()} == {"stopped"}
