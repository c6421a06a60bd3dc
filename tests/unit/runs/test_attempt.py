"""One try of a run: when it begins, and what its status says however it ends."""

import pytest

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import DataError
from coordexp.runs.executor import attempt
from coordexp.runs.plan import plan_runs
from coordexp.runs.reporter import LocalReporter
from coordexp.runs.status import Begun, Ended, tell
from coordexp.runs.stop import RunStoppedError, request_stop


@pytest.fixture
def plan(tmp_path):
    (plan,) = plan_runs(ExperimentConfig.model_validate({"experiment": {"name": "tiny", "runs_dir": str(tmp_path)}}))
    tell(plan.run_dir, Begun())
    return plan


def _try(plan, outcome, **options):
    """Return the configurations that were begun; the try ends with ``outcome``."""
    begun = []

    def function(config, *, reporter, print_line):
        begun.append(config)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    attempt(plan, function, lambda: LocalReporter(plan.run_dir), **options)
    return begun


@pytest.mark.parametrize(
    ("outcome", "state", "message"),
    [
        (None, "finished", ""),
        (Ended("finished", "lossy"), "finished", "lossy"),
        (RunStoppedError("asked"), "stopped", "asked"),
        (DataError("no images"), "failed", "no images"),
        (RuntimeError("no peer"), "failed", "RuntimeError: no peer"),
    ],
)
def test_every_end_is_told(plan, outcome, state, message):
    assert _try(plan, outcome) == [plan.config]
    assert (plan.status().state, plan.status().message) == (state, message)
    assert plan.folder.error_log.exists() == (state == "failed")


def test_where_a_try_may_follow_only_wrong_input_is_a_failure(plan):
    with pytest.raises(RuntimeError):
        _try(plan, RuntimeError("no peer"), is_tried_again=True)
    assert (plan.status().state, plan.status().message) == ("running", "RuntimeError: no peer")
    with pytest.raises(DataError):
        _try(plan, DataError("no images"), is_tried_again=True)
    assert (plan.status().state, plan.status().restarts) == ("failed", 1)
    assert "restart 1 after RuntimeError: no peer" in plan.folder.progress_log.read_text()
    assert _try(plan, None, is_tried_again=True) == []  # what failed for good is not begun again
    assert plan.status().state == "failed"


def test_a_run_that_is_asked_to_stop_does_not_begin(plan):
    request_stop(plan.run_dir.parent, "enough")
    assert _try(plan, None) == []
    assert (plan.status().state, plan.status().message) == ("stopped", "enough")
