"""A Ray session: the cluster that is there, or a private one on this machine that ends with us."""

import contextlib
import json
import logging
import os
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor

from coordexp.cluster.capacity import check_answers, cluster_address, ray_folder
from coordexp.cpus import usable_cpus
from coordexp.errors import ResourceError
from coordexp.runs.stop import SUBMITTED_ENV

# Environment variables of Ray: read when it is imported or initialised; a value that is set already stays.
LAUNCHER_ENV = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # the new output prints a table of Tune's own settings
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_COLOR_PREFIX": "0",  # what Ray warns of ends in a job's log, where colours are rubbish
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}
# Of a private session alone, and of its processes: else every one of Ray's servers listens on all interfaces.
LOOPBACK_ENV = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# Travels to drivers and workers. Every report waits for the controller to look at its workers.
PROCESS_ENV = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
    "TOKENIZERS_PARALLELISM": "false",
}
# For a private session only: this machine is not preempted, and the helper process that checks costs 110 MB.
PRIVATE_SESSION_ENV = {"RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}
_OBJECT_STORE_BYTES = 128 * 2**20  # nothing of ours goes through it but configurations
_REASON_CHARACTERS = 160  # of an error that may be a page


@contextlib.contextmanager
def ray_session(*, threads: int, debug: bool = False) -> Generator[Future[None]]:
    """Start or join Ray in the background; wait for the yielded future before using it.

    ``RAY_ADDRESS`` (a job submission sets it) names a cluster to join; without it a private one, on
    loopback, is started and stopped again. A session that is already initialised is used and left alone. Every
    process that Ray starts has so many OpenMP threads; ``debug`` lets Ray's own log lines through.

    Raises:
        ResourceError: at once, if ``RAY_ADDRESS`` names no cluster that answers; later, if the cluster is lost.
    """
    address = cluster_address()
    wanted = LAUNCHER_ENV if address is not None else LAUNCHER_ENV | LOOPBACK_ENV
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    if address is None:
        os.environ["RAY_TMPDIR"] = ray_folder()
    import ray  # late: Ray reads the environment above when it is imported
    from ray.exceptions import RayError

    if ray.is_initialized():
        ready: Future[None] = Future()
        ready.set_result(None)
        yield ready
        return
    if address is not None and SUBMITTED_ENV not in os.environ:  # a job's cluster is there
        check_answers(address)
    with ThreadPoolExecutor(1, thread_name_prefix="ray-start") as starter:
        started = starter.submit(start_session, threads, debug=debug)
        try:
            yield started
        except RayError as error:  # a head that was replaced knows nothing of us
            where = "private Ray of this command" if address is None else f"Ray cluster at {address}"
            raise ResourceError(
                f"the {where} was lost or replaced ({type(error).__name__}); where it is whole, the same command "
                "continues"
            ) from error
        finally:
            started.exception()  # a half-started session cannot be shut down
            ray.shutdown()


def start_session(threads: int, *, debug: bool) -> None:
    """Join the cluster at ``RAY_ADDRESS``, or start a private Ray on loopback."""
    import ray

    if not debug:
        for name in ("ray", "ray.tune", "ray.train"):
            logging.getLogger(name).setLevel(logging.ERROR)
    shown = logging.WARNING if debug else logging.ERROR
    env_vars = PROCESS_ENV | {"OMP_NUM_THREADS": str(threads)}
    if cluster_address() is None:
        ray.init(
            address="local",
            num_cpus=usable_cpus(),  # Ray's own count knows a container's quota, and not the affinity of a job
            include_dashboard=True,  # without it a dead driver leaks its placement group
            dashboard_host="127.0.0.1",
            object_store_memory=_OBJECT_STORE_BYTES,
            log_to_driver=debug,
            logging_level=shown,
            runtime_env={"env_vars": env_vars | PRIVATE_SESSION_ENV},
        )
        return
    own = {name: value for name, value in env_vars.items() if name not in submitted_env()}  # Ray refuses a name twice
    try:
        ray.init(log_to_driver=debug, logging_level=shown, runtime_env={"env_vars": own})
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:_REASON_CHARACTERS]
        raise ResourceError(f"the Ray cluster at RAY_ADDRESS cannot be joined ({reason})") from error


def submitted_env() -> dict[str, str]:
    """Return the environment variables that came with ``ray job submit --runtime-env-json``."""
    submitted = json.loads(os.environ.get(SUBMITTED_ENV, "{}"))
    return (submitted.get("runtime_env") or {}).get("env_vars") or {}
