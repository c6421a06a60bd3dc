"""A Ray session: the cluster that is there, or a private one on this machine that ends with us."""

import contextlib
import json
import logging
import os
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor

from coordexp.cluster.capacity import beginning, cluster_address, nodes_of, ray_folder
from coordexp.cluster.last_words import last_words
from coordexp.errors import ResourceError
from coordexp.files import shorten_temporary_folder
from coordexp.runs.stop import SUBMITTED_ENV

# Environment variables of Ray: read when it is imported or initialised; a value that is set already stays.
LAUNCHER_ENV = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # the new output prints a table of Tune's own settings
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_COLOR_PREFIX": "0",  # what Ray warns of ends in a job's log, where colours are rubbish
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A private session's head keeps 4 kB of each call for its dashboard, by default of the last 100,000 calls, which is
    # 0.4 GB; six runs at once make twenty calls a second.
    "RAY_task_events_max_num_task_in_gcs": "10000",
    "RAY_worker_maximum_startup_concurrency": "8",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}
# Of a private session alone, and of its processes: else every one of Ray's servers listens on all interfaces.
LOOPBACK_ENV = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# Travels to drivers and workers. Every report waits for the driver to look at its workers.
PROCESS_ENV = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
    "TOKENIZERS_PARALLELISM": "false",
}
PRIVATE_ENV = "COORDEXP_PRIVATE_RAY"
# For a private session only: nobody preempts this machine or adds another to it, and every helper process costs 110 MB
# and two seconds.
PRIVATE_SESSION_ENV = {"RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0", PRIVATE_ENV: "1"}
_OBJECT_STORE_BYTES = 128 * 2**20  # nothing of ours goes through it but configurations


@contextlib.contextmanager
def ray_session(*, threads: int, debug: bool = False) -> Generator[Future[None]]:
    """Start or join Ray in the background; wait for the yielded future before using it.

    ``RAY_ADDRESS`` (a job submission sets it) names a cluster to join; without it a private one, on
    loopback, is started and stopped again. A session that is already initialised is used and left alone.

    Args:
        threads: OpenMP threads of every process Ray starts.
        debug: let Ray's own log lines through.

    Raises:
        ResourceError: at once, if ``RAY_ADDRESS`` names no cluster that answers.
    """
    address = cluster_address()
    wanted = LAUNCHER_ENV | (LOOPBACK_ENV if address is None else {})
    added = wanted.keys() - os.environ.keys()
    os.environ.update({name: wanted[name] for name in added})
    if address is None:
        os.environ["RAY_TMPDIR"] = ray_folder()
        shorten_temporary_folder()
    import ray  # late: Ray reads the environment above when it is imported

    if ray.is_initialized():
        ready: Future[None] = Future()
        ready.set_result(None)
        yield ready
        return
    if address is not None and SUBMITTED_ENV not in os.environ:  # a job's cluster is there
        nodes_of(address)  # Ray itself would try for minutes, and then end this process
    with (
        last_words(_ended_by_ray(address), owns_ray=address is None),
        ThreadPoolExecutor(1, thread_name_prefix="ray-start") as starter,
    ):
        started = starter.submit(start_session, threads, debug=debug)
        try:
            with lost_ray_is_said(address):
                yield started
        finally:
            started.exception()  # a half-started session cannot be shut down
            ray.shutdown()
            for name in LOOPBACK_ENV.keys() & added:
                os.environ.pop(name, None)  # a cluster that this process joins later is another matter


@contextlib.contextmanager
def lost_ray_is_said(address: str | None) -> Generator[None]:
    """Turn what Ray raises in the command itself into one sentence: a head that was replaced knows nothing of us.

    Raises:
        ResourceError: instead of Ray's own error.
    """
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        where = "private Ray of this command" if address is None else f"Ray cluster at {address}"
        raise ResourceError(
            f"the {where} was lost or replaced ({type(error).__name__}); where it is whole, the same command goes on"
        ) from error


def _ended_by_ray(address: str | None) -> str:
    if address is None:
        return "error: the private Ray of this command has died, or the command was killed; the same command goes on"
    return (
        f"error: the Ray cluster at {address} has lost its head or this machine's node, or this command was killed; "
        "where the cluster is there, the same command goes on"
    )


def start_session(threads: int, *, debug: bool) -> None:
    """Join the cluster at ``RAY_ADDRESS``, or start a private Ray on loopback.

    Raises:
        ResourceError: if no cluster answers there.
    """
    import ray

    if not debug:
        for name in ("ray", "ray.tune", "ray.train"):
            logging.getLogger(name).setLevel(logging.ERROR)
    own = PROCESS_ENV | {"OMP_NUM_THREADS": str(threads)}
    env_vars = {name: value for name, value in own.items() if name not in submitted_env()}  # Ray refuses a name twice
    shown = logging.WARNING if debug else logging.ERROR
    if cluster_address() is not None:
        try:
            ray.init(log_to_driver=debug, logging_level=shown, runtime_env={"env_vars": env_vars})
        except ConnectionError as error:
            raise ResourceError(f"the Ray cluster at RAY_ADDRESS cannot be joined ({beginning(error)})") from error
        return
    ray.init(
        address="local",
        include_dashboard=True,  # without it a dead driver leaks its placement group
        dashboard_host="127.0.0.1",
        object_store_memory=_OBJECT_STORE_BYTES,
        log_to_driver=debug,
        logging_level=shown,
        runtime_env={"env_vars": env_vars | PRIVATE_SESSION_ENV},
    )


def submitted_env() -> dict[str, str]:
    """Return the environment variables that came with ``ray job submit --runtime-env-json``."""
    submitted = json.loads(os.environ.get(SUBMITTED_ENV, "{}"))
    return (submitted.get("runtime_env") or {}).get("env_vars") or {}
