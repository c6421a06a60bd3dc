"""A Ray session: a cluster that runs already, or a private Ray on this machine that ends with the command."""

import contextlib
import json
import logging
import os
import threading
from collections.abc import Generator
from concurrent.futures import Future, InvalidStateError
from pathlib import Path

from coordexp.cluster.capacity import check_answers, cluster_address, ray_folder
from coordexp.cluster.last_words import LastWords
from coordexp.cpus import usable_cpus
from coordexp.errors import ResourceError
from coordexp.runs.stop import SUBMITTED_ENV
from coordexp.temporary import shorten_temporary_folder

_log = logging.getLogger(__name__)

_DASHBOARD_SECONDS_ENV = "RAY_DASHBOARD_STARTUP_TIMEOUT_S"
_MORE_SECONDS = 10.0

# Environment variables of Ray: read when it is imported or initialised; a value that is set already stays.
LAUNCHER_ENV = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",  # the new output prints a table of Tune's own settings
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_COLOR_PREFIX": "0",  # what Ray warns of ends in a job's log, where colours are rubbish
    _DASHBOARD_SECONDS_ENV: "42",  # with Ray's 60 a failed start takes longer than a person waits
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}
# Only for a private session and its processes: without it each of Ray's servers listens on all interfaces.
LOOPBACK_ENV = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# For drivers and workers. The health check is frequent because every report waits for the controller's next look.
PROCESS_ENV = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
    "TOKENIZERS_PARALLELISM": "false",
}
# Only for a private session: this machine is not preempted, and the process that would look for that costs 110 MB.
PRIVATE_SESSION_ENV = {"RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}
_OBJECT_STORE_BYTES = 128 * 2**20  # only configurations of ours go through it
_REASON_CHARACTERS = 160  # shown of an error that may be a page long


@contextlib.contextmanager
def ray_session(*, threads: int, debug: bool = False) -> Generator[Future[None]]:
    """Start or join Ray in the background; wait for the yielded future before using it.

    ``RAY_ADDRESS``, which a job submission sets, names a cluster to join. Without it a private one is started on
    loopback, and stopped at the end. If Ray is initialised already, it is used and left alone.

    Args:
        threads: OpenMP threads of every process that Ray starts.
        debug: lets Ray's own log lines through.

    Raises:
        ResourceError: at once if ``RAY_ADDRESS`` names no cluster that answers, or if a private Ray has no place for
            its files; within a minute if Ray does not start; later if the cluster is lost.
    """
    address = cluster_address()
    _set_environment(address)
    import ray  # only here: Ray reads the environment that was just set when it is imported
    from ray.exceptions import RayError

    if ray.is_initialized():
        ready: Future[None] = Future()
        ready.set_result(None)
        yield ready
        return
    if address is not None and SUBMITTED_ENV not in os.environ:  # the cluster of a submitted job does answer
        check_answers(address)
    cluster = "private Ray of this command" if address is None else f"Ray cluster at {address}"
    starting = _StartingRay(threads, debug=debug, cluster=cluster)
    try:
        yield starting.ready
    except RayError as error:  # such as of a new head, which does not know this process
        raise ResourceError(
            f"the {cluster} was lost or replaced ({type(error).__name__}); once it is there again, the same command "
            "continues"
        ) from error
    finally:
        starting.close()


def _set_environment(address: str | None) -> None:
    environment = LAUNCHER_ENV if address is not None else LAUNCHER_ENV | LOOPBACK_ENV
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    if address is None:
        os.environ["RAY_TMPDIR"] = ray_folder()
        shorten_temporary_folder()


class _StartingRay:
    """A Ray that starts, or is joined, in a thread of its own. The wait for it ends after :func:`start_seconds`."""

    def __init__(self, threads: int, *, debug: bool, cluster: str) -> None:
        self.ready: Future[None] = Future()
        self._cluster = cluster
        self._has_started = threading.Event()
        self._is_closed = threading.Event()
        self._last_words: LastWords | None = None
        # Daemons: Ray's start cannot be interrupted, and must not keep a command from ending that has given up.
        threading.Thread(target=self._start, args=(threads, debug), name="ray-start", daemon=True).start()
        threading.Thread(target=self._give_up_in_time, name="ray-start-limit", daemon=True).start()

    def close(self) -> None:
        """Leave Ray. A Ray that is still starting cannot be shut down; it ends with this process."""
        if self.ready.exception() is None or self._has_started.is_set():
            import ray

            ray.shutdown()
        if self._last_words is not None:
            self._last_words.close()
        self._is_closed.set()

    def _start(self, threads: int, debug: bool) -> None:
        try:
            start_session(threads, debug=debug)
            self._last_words = last_words(self._cluster)
        except BaseException as error:  # noqa: BLE001 - the thread that waits for the future raises it
            self._settle(error)
        else:
            self._settle(None)
        finally:
            self._has_started.set()
        self._is_closed.wait()  # if this thread ended, Linux would end the processes that Ray has started in it

    def _give_up_in_time(self) -> None:
        if not self._has_started.wait(start_seconds()):
            self._settle(
                ResourceError(
                    f"the {self._cluster} has not started within {start_seconds():g} s ({reason_in_logs()}); mend the "
                    "cause, or export RAY_DASHBOARD_STARTUP_TIMEOUT_S=300 where the disk or the machine is slow; "
                    "cluster.executor=inline needs no Ray"
                )
            )

    def _settle(self, error: BaseException | None) -> None:
        with contextlib.suppress(InvalidStateError):  # the other thread was first
            if error is None:
                self.ready.set_result(None)
            else:
                self.ready.set_exception(error)


def last_words(cluster: str) -> LastWords | None:
    """Return the process that speaks if Ray kills this one; None if Ray is not initialised, as in a test of a start."""
    import ray

    if not ray.is_initialized():
        return None
    return LastWords(ray.get_runtime_context().gcs_address, cluster=cluster)


def start_seconds() -> float:
    """Return how long Ray may take to start: a little more than it gives its dashboard, its slowest process."""
    text = os.environ.get(_DASHBOARD_SECONDS_ENV, "")
    if not text.isdigit():
        text = LAUNCHER_ENV[_DASHBOARD_SECONDS_ENV]
    return _MORE_SECONDS + float(text)


def start_session(threads: int, *, debug: bool) -> None:
    """Join the cluster at ``RAY_ADDRESS``, or start a private Ray on loopback.

    Args:
        threads: OpenMP threads of every process that Ray starts.
        debug: lets Ray's own log lines through.

    Raises:
        ResourceError: if that fails, with Ray's own reason.
    """
    import ray

    if not debug:
        for name in ("ray", "ray.tune", "ray.train"):
            logging.getLogger(name).setLevel(logging.ERROR)
    address = cluster_address()
    _log.debug("starts Ray: %s", "a private one" if address is None else f"joins {address}")
    shown = logging.WARNING if debug else logging.ERROR
    env_vars = PROCESS_ENV | {"OMP_NUM_THREADS": str(threads)}
    try:
        if address is None:
            ray.init(
                address="local",
                num_cpus=usable_cpus(),  # Ray's own count ignores the CPU affinity that a scheduler has set
                include_dashboard=True,  # without it a dead driver leaks its placement group
                dashboard_host="127.0.0.1",
                object_store_memory=_OBJECT_STORE_BYTES,
                log_to_driver=debug,
                logging_level=shown if debug else logging.CRITICAL,  # our sentence has the reason of a failed start
                runtime_env={"env_vars": env_vars | PRIVATE_SESSION_ENV},
            )
            logging.getLogger("ray").setLevel(shown)
            return
        # Ray refuses a variable that the job submission has set, too.
        unsubmitted = {name: value for name, value in env_vars.items() if name not in submitted_env()}
        ray.init(log_to_driver=debug, logging_level=shown, runtime_env={"env_vars": unsubmitted})
    except Exception as error:
        reason = reason_of(error)
        if address is None:
            logs = session_folder() or os.environ.get("RAY_TMPDIR", "/tmp")
            raise ResourceError(
                f"Ray cannot start on this machine ({reason}); its logs are in {logs}; cluster.executor=inline needs "
                "no Ray"
            ) from error
        hint = _token_hint(error)
        raise ResourceError(f"the Ray cluster at {address} cannot be joined ({reason}){hint}") from error


def reason_of(error: Exception) -> str:
    """Return the last line of Ray's error that gives a reason, or a line of Ray's logs if the error is empty.

    For a dashboard that does not start, the error is the end of its log, and the last line there is the reason.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines_with_errors = [line for line in lines if "Error" in line or "error" in line]
    candidates = lines_with_errors or lines
    return _shortened_reason(candidates[-1]) if candidates else reason_in_logs()


def reason_in_logs() -> str:
    """Return the last error in the logs of this process's private session, or a sentence that there is none."""
    folder = session_folder()
    if folder is None:
        return "Ray gives no reason"
    logs = sorted((folder / "logs").glob("*.err")) + sorted((folder / "logs").glob("*.log"))
    for log in logs:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line.strip() for line in lines if "Error" in line or "error" in line]
        if errors:
            return f"{log.name}: {_shortened_reason(errors[-1])}"
    return f"Ray gives no reason in {folder / 'logs'}"


def session_folder() -> Path | None:
    """Return the folder of this process's private session; its name ends with the process id."""
    sessions = sorted(Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray").glob(f"session_*_{os.getpid()}"))
    return sessions[-1] if sessions else None


def _shortened_reason(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _REASON_CHARACTERS else f"{text[:_REASON_CHARACTERS]}..."


def _token_hint(error: Exception) -> str:
    """Return what to do if a head takes connections but lets nobody join; Ray itself only says that joining failed."""
    from ray.exceptions import AuthenticationError

    if not isinstance(error, ConnectionError | AuthenticationError):
        return ""
    place = "RAY_AUTH_TOKEN, or in the file ~/.ray/auth_token or RAY_AUTH_TOKEN_PATH"
    if os.environ.get("RAY_AUTH_MODE") == "token":
        return f"; RAY_AUTH_MODE is token, so the cluster's token is expected in {place}; another one is refused"
    return (
        f"; it takes connections, so it may ask for a token: export RAY_AUTH_MODE=token, with the cluster's token in "
        f"{place}"
    )


def submitted_env() -> dict[str, str]:
    """Return the environment variables that came with ``ray job submit --runtime-env-json``."""
    submitted = json.loads(os.environ.get(SUBMITTED_ENV, "{}"))
    return (submitted.get("runtime_env") or {}).get("env_vars") or {}
