"""What an upgrade of Ray breaks, beside the private names that ``tests/upgrade/names.py`` lists."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.backend import BackendConfig

from coordexp.cluster import ray_private, session
from coordexp.runs.stop import GRACE_ENV, SUBMITTED_ENV

RAY = Path(ray.__file__).parent


# What Ray reads from the environment, or names its files and resources.
STRINGS = (
    *session.LAUNCHER_ENV,
    *session.LOOPBACK_ENV,
    *(name for name in session.PROCESS_ENV if name != "TOKENIZERS_PARALLELISM"),
    *(name for name in session.PRIVATE_SESSION_ENV if name != session.PRIVATE_ENV),
    SUBMITTED_ENV,
    GRACE_ENV,
    "node:__internal_head__",
    ray_private.CHECKPOINT_RECORD,
)


def test_ray_still_knows_the_strings_we_rely_on():
    wanted = {re.sub(r"^RAY_(?=[a-z])", "", name).encode() for name in STRINGS}  # RAY_x sets the option x in C++
    wanted = {name.removeprefix(b"node:") for name in wanted}
    for path in sorted(RAY.rglob("*.py")):
        if wanted and "thirdparty_files" not in path.parts:
            text = path.read_bytes()
            wanted -= {name for name in wanted if name in text}
    if wanted:
        text = (RAY / "_raylet.so").read_bytes()
        wanted -= {name for name in wanted if name in text}
    assert not wanted, f"Ray {ray.__version__} does not know {wanted} any more"


def test_asking_a_cluster_imports_no_ray_train():
    """The question is asked in a process of its own, while somebody waits."""
    program = (
        "import runpy, sys; sys.argv = ['ray_private', 'auto', '0.1']\n"
        "import ray._private.services as services\n"
        "def none_here(addr): raise ConnectionError\n"
        "services.canonicalize_bootstrap_address = none_here\n"
        "runpy.run_module('coordexp.cluster.ray_private', run_name='__main__')\n"
        "print({'ray.train', 'ray.tune', 'torch', 'pydantic'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    answer, imported = done.stdout.splitlines()
    assert json.loads(answer) is None
    assert imported == "set()"


def trainer() -> ray_private.RunTrainer:
    return ray_private.RunTrainer(
        lambda config: None,
        train_loop_config={},
        backend_config=BackendConfig(),
        scaling_config=ScalingConfig(),
        run_config=RunConfig(),
        callbacks=[],
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data")  # of a helper that is left out
def test_a_run_starts_no_helper_that_hands_out_data_or_outlives_its_driver():
    names = {type(callback).__name__ for callback in trainer()._create_default_callbacks()}
    assert "BackendSetupCallback" in names
    assert not names & {"DatasetsCallback", "PlacementGroupCleanerCallback"}


@pytest.mark.parametrize("is_private", [False, True])
def test_only_where_there_may_be_an_autoscaler_it_is_told_of_a_run(monkeypatch, is_private):
    """It is told through a process of its own, which a private session does not need."""
    given: list[type] = []

    class Controller:
        def __init__(self, *, scaling_policy: object) -> None:
            given.append(type(scaling_policy))

        async def run(self) -> None:
            """Be over."""

        def get_result(self) -> str:
            return "result"

    monkeypatch.setattr(ray_private, "TrainController", Controller)
    if is_private:
        monkeypatch.setenv(session.PRIVATE_ENV, "1")
    else:
        monkeypatch.delenv(session.PRIVATE_ENV, raising=False)
    fixed = ray_private.FixedScalingPolicy(ScalingConfig())
    assert trainer()._initialize_and_run_controller(scaling_policy=fixed) == "result"
    assert given == [ray_private.AsksNoAutoscaler if is_private else ray_private.FixedScalingPolicy]
    silent = ray_private.AsksNoAutoscaler(ScalingConfig(num_workers=3))
    silent.after_controller_start(SimpleNamespace(run_id="one"))
    assert silent.make_decision_for_non_running_worker_group().num_workers == 3
    assert silent._coordinator_client is None
