"""The end of runs whose driver process died."""

import errno
import traceback

import pytest
from ray.tune import TuneError

from coordexp.cluster.executor import end_without_driver, own_error
from coordexp.config.schema import ExperimentConfig
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.runs.status import RunStatus, write_status

DIED = "the run's driver process died"


@pytest.fixture
def plan(tmp_path) -> RunPlan:
    config = ExperimentConfig.model_validate({"experiment": {"name": "tiny", "runs_dir": str(tmp_path)}})
    return plan_runs(config)[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (RunStatus("waiting"), ("failed", DIED)),
        (RunStatus("running"), ("failed", DIED)),
        (RunStatus("finished"), ("finished", "")),
        (RunStatus("failed", message="shapes do not match"), ("failed", "shapes do not match")),
        # Stopped by a command before; the driver died before it could begin.
        (RunStatus("stopped", message="interrupted"), ("failed", DIED)),
    ],
)
def test_a_run_without_a_driver_gets_an_end(plan, before, after):
    write_status(plan.run_dir, before)
    end_without_driver(plan)
    assert (plan.status().state, plan.status().message) == after


def test_what_an_event_raised_in_tune_is_what_the_command_raises():
    """As Tune does it: the traceback as a text, and what was raised beside it."""

    def step() -> None:
        try:
            raise OSError(errno.EROFS, "Read-only file system", "status.json")
        except OSError:
            raise TuneError(traceback.format_exc())  # noqa: B904

    with pytest.raises(TuneError) as wrapped:
        step()
    found = own_error(wrapped.value)
    assert isinstance(found, OSError)
    assert found.filename == "status.json"
    alone = TuneError("a text")
    assert own_error(alone) is alone
