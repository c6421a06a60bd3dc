"""What an upgrade of Ray breaks: each private name that we use, what for, and what we expect of it.

The private names themselves live in ``coordexp/cluster/ray_private.py``, and nowhere else.
"""

import importlib
import inspect
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray

from coordexp.cluster import ray_private, session
from coordexp.runs.stop import GRACE_ENV, SUBMITTED_ENV

PACKAGE = Path(ray_private.__file__).parents[1]
RAY = Path(ray.__file__).parent


@dataclass(frozen=True)
class PrivateName:
    """A name of Ray's that is not public.

    Attributes:
        path: module and name.
        used_for: what of ours stops working without it.
        parameters: that we call it with, or that it calls ours with.
        attributes: that we use of it.
    """

    path: str
    used_for: str
    parameters: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()


NAMES = (
    PrivateName("ray._private.state.actors", "seeing that the controller of a run is dead", ("actor_id",)),
    PrivateName("ray._private.state.state._connect_and_get_accessor", "finding leaked placement groups"),
    PrivateName("ray._private.worker.global_worker", "recognising our own placement groups", (), ("current_job_id",)),
    PrivateName("ray._raylet.GcsClient", "asking a cluster what it has"),
    PrivateName("ray._raylet.InnerGcsClient.get_all_node_info", "the same; what GcsClient hands calls on to"),
    PrivateName("ray._private.services.canonicalize_bootstrap_address", "the meaning of RAY_ADDRESS=auto", ("addr",)),
    PrivateName(
        "ray._private.authentication.authentication_token_setup.maybe_enable_token_auth_if_token_available",
        "asking a cluster that wants a token",
        ("warn_if_disabled",),
    ),
    PrivateName("ray.core.generated.gcs_pb2.GcsNodeInfo", "which nodes are alive", (), ("ALIVE",)),
    PrivateName(
        "ray.core.generated.gcs_pb2.PlacementGroupTableData",
        "finding leaked placement groups",
        (),
        (
            *("REMOVED", "FromString", "state", "is_detached"),
            *("creator_job_id", "creator_actor_id", "placement_group_id"),
        ),
    ),
    PrivateName(
        "ray.train.v2._internal.execution.callback.WorkerGroupCallback.before_worker_group_start",
        "waiting for a run's turn and its former controller",
        ("worker_group_context",),
    ),
    PrivateName(
        "ray.train.v2._internal.execution.callback.WorkerGroupCallback.after_worker_group_start",
        "the begin and restarts of a run",
        ("worker_group",),
    ),
    PrivateName(
        "ray.train.v2._internal.execution.callback.WorkerGroupCallback.after_worker_group_poll_status",
        "ending a run with wrong input at once",
        ("worker_group_status",),
    ),
    PrivateName(
        "ray.train.v2._internal.execution.worker_group.WorkerGroupPollStatus", "errors of workers", (), ("errors",)
    ),
    PrivateName(
        "ray.train.v2._internal.exceptions.UserExceptionWithTraceback",
        "the sentence of what a worker raised",
        ("exc", "traceback_str"),
    ),
    PrivateName(
        "ray.train.v2._internal.exceptions.WorkerHealthCheckFailedError", "distinguishing a death from an error"
    ),
    PrivateName("ray.train.v2._internal.callbacks.DatasetsCallback", "starting no process for Ray Data"),
    PrivateName("ray.train.torch.TorchTrainer._create_default_callbacks", "starting no process for Ray Data"),
    PrivateName("ray.train.v2.api.callback.RayTrainCallback", "our own callbacks of a trainer"),
    PrivateName("ray.tune.progress_reporter.TrialProgressCallback._print", "silencing Tune", ("msg",)),
)
# What Ray reads from the environment, or names its files and resources.
STRINGS = (
    *session.LAUNCHER_ENV,
    *session.LOOPBACK_ENV,
    *(name for name in session.PROCESS_ENV if name != "TOKENIZERS_PARALLELISM"),
    *session.PRIVATE_SESSION_ENV,
    SUBMITTED_ENV,
    GRACE_ENV,
    "node:__internal_head__",
    ray_private.CHECKPOINT_RECORD,
)


def moved(name: PrivateName) -> str | None:
    """Return what is wrong with a name, or None."""
    parts = name.path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
            break
        except ImportError:
            continue
    where = f"Ray {ray.__version__}: {name.path}"
    for part in parts[end:]:
        if not hasattr(found, part):
            return f"{where} moved; used for {name.used_for}"
        found = getattr(found, part)
    fields = found.DESCRIPTOR.fields_by_name if hasattr(found, "DESCRIPTOR") else ()  # of a protobuf message
    for attribute in name.attributes:
        if not hasattr(found, attribute) and attribute not in fields:
            return f"{where} has no {attribute} any more; used for {name.used_for}"
    if name.parameters:
        known = inspect.signature(found).parameters  # pyright: ignore[reportArgumentType]
        lost = [parameter for parameter in name.parameters if parameter not in known]
        if lost:
            return f"{where} takes no {', '.join(lost)} any more; used for {name.used_for}"
    return None


@pytest.mark.parametrize("name", NAMES, ids=[name.path for name in NAMES])
def test_a_private_name_is_where_we_expect_it(name):
    assert moved(name) is None


def test_what_moved_is_named_with_its_use():
    assert moved(PrivateName("ray._private.state.gone.away", "x")) == (
        f"Ray {ray.__version__}: ray._private.state.gone.away moved; used for x"
    )
    lost = moved(PrivateName("ray._private.state.actors", "y", ("actor_name",)))
    assert lost is not None
    assert "takes no actor_name any more; used for y" in lost
    assert moved(PrivateName("ray._private.worker.global_worker", "z", (), ("no_such",))) is not None


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


def test_private_names_are_in_one_file():
    private = re.compile(r"ray\._|\b_raylet\b|ray\.train\.v2|ray\.core\.generated|__internal_head__")
    found = {path.name for path in PACKAGE.rglob("*.py") if private.search(path.read_text(encoding="utf-8"))}
    assert found == {"ray_private.py"}


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
