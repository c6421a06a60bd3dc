"""``python -m coordexp.tracking.server``: a shared MLflow server on PostgreSQL, on loopback unless told.

The database comes from MLFLOW_BACKEND_STORE_URI, artifacts pass through the server (a client needs no
access to where they lie), and nothing secret is on a command line or in a file that others can read.
"""

import argparse
import configparser
import importlib.util
import ipaddress
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console

from coordexp.errors import CoordExpError, TrackingError
from coordexp.tracking.database import DATABASE_VARIABLE, database_uri, has_users, prepare_database

_ADMIN_PASSWORD = "MLFLOW_AUTH_ADMIN_PASSWORD"
_MIN_PASSWORD = 12
_AUTH_CACHE_SECONDS = 60  # else every request hashes the password anew


def main(argv: Sequence[str] | None = None) -> int:
    """Check, prepare the database, and serve until stopped.

    Returns:
        The server's exit code, or 2 after a sentence about what the user can mend.
    """
    options = _parser(os.environ).parse_args(argv)
    errors = Console(stderr=True)
    try:
        uri = database_uri(os.environ)
        check_exposure(options.host, auth=options.auth, behind_proxy=options.behind_proxy)
        if not options.prepare_only:
            check_port(options.host, options.port)
            check_store(options.artifacts)
        done = prepare_database(uri, upgrade=options.upgrade)
        if options.auth:
            _check_auth(os.environ, uri)
        errors.print(f"tables of MLflow in PostgreSQL: {done}", highlight=False)
        if options.prepare_only:
            return 0
        return _serve(options, os.environ, uri)
    except CoordExpError as error:
        errors.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
        return 2


def check_exposure(host: str, *, auth: bool, behind_proxy: bool) -> None:
    """Refuse to show runs, and let them be changed, to whoever reaches the machine.

    Raises:
        TrackingError: if ``host`` is reachable from elsewhere and nothing was said about passwords.
    """
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback and not auth and not behind_proxy:
        raise TrackingError(
            f"host {host} can be reached from other machines, and anyone could change runs: expected --auth "
            "(passwords), or --behind-proxy where a proxy in front asks for them"
        )


def check_port(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on: MLflow would say so in a page of its server's log.

    Raises:
        TrackingError: if the port is taken or no port, or the host is none of this machine.
    """
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one just closed is free
            probe.bind((host, port))
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "a port is below 65536"
        raise TrackingError(
            f"{host}:{port} cannot be listened on ({reason}): expected another --host or --port"
        ) from None


def check_store(artifacts: str) -> None:
    """Refuse S3 without its client: MLflow imports it at the first upload only.

    Raises:
        TrackingError: names what to install.
    """
    if artifacts.startswith("s3://") and importlib.util.find_spec("boto3") is None:
        raise TrackingError(f"artifacts in {artifacts} need the module boto3: pip install boto3")


def server_command(options: argparse.Namespace) -> list[str]:
    """Return the command line of MLflow's server; it holds no secret."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", options.host, "--port", str(options.port)]
    command += ["--workers", str(options.workers), "--serve-artifacts"]
    command += ["--artifacts-destination", _destination(options.artifacts)]
    if options.allowed_hosts:
        command += ["--allowed-hosts", options.allowed_hosts]
    return [*command, "--app-name", "basic-auth"] if options.auth else command


def server_environment(environment: Mapping[str, str], uri: str, *, auth_config: Path | None) -> dict[str, str]:
    """Return the server's environment: the database, and MLflow's extras that cost memory switched off."""
    own = {DATABASE_VARIABLE: uri, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    if auth_config is not None:
        own["MLFLOW_AUTH_CONFIG_PATH"] = str(auth_config)
        # Signs one form only; several servers behind one name need the same and set it.
        own["MLFLOW_FLASK_SERVER_SECRET_KEY"] = environment.get(
            "MLFLOW_FLASK_SERVER_SECRET_KEY", secrets.token_urlsafe(32)
        )
    removed = (
        "MLFLOW_TRACKING_URI",
        "MLFLOW_REGISTRY_URI",
        "MLFLOW_DEFAULT_ARTIFACT_ROOT",
    )  # a client's, or not proxied
    return {name: value for name, value in environment.items() if name not in removed} | own


def write_auth_config(path: Path, uri: str) -> None:
    """Write MLflow's configuration of users; it names the database, so only its owner may read it."""
    config = configparser.ConfigParser(interpolation=None)
    config["mlflow"] = {
        "default_permission": "READ",
        "database_uri": uri.replace("%", "%%"),  # MLflow reads it with interpolation
        "admin_username": "admin",
        "authorization_function": "mlflow.server.auth:authenticate_request_basic_auth",
        "auth_cache_ttl_seconds": str(_AUTH_CACHE_SECONDS),
    }
    path.touch(mode=0o600)
    with path.open("w", encoding="utf-8") as handle:
        config.write(handle)


def _serve(options: argparse.Namespace, environment: Mapping[str, str], uri: str) -> int:
    """Run MLflow's server and its workers; a signal to this process reaches all of them."""
    with tempfile.TemporaryDirectory(prefix="coordexp-mlflow-") as private:
        started: list[int] = []
        asked: list[int] = []

        def stop(number: int, frame: FrameType | None) -> None:
            del frame
            asked.append(number)
            for group in started:
                os.killpg(group, signal.SIGTERM)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        auth_config: Path | None = None
        if options.auth:
            own = environment.get("MLFLOW_AUTH_CONFIG_PATH")
            auth_config = Path(own) if own else Path(private) / "auth.ini"
            if not own:
                write_auth_config(auth_config, uri)
        process = subprocess.Popen(
            server_command(options),
            env=server_environment(environment, uri, auth_config=auth_config),
            start_new_session=True,
        )
        started.append(process.pid)
        if asked:  # while it was being started, when there was nothing to end
            os.killpg(process.pid, signal.SIGTERM)
        code = process.wait()
        return 0 if code == -signal.SIGTERM else code


def _check_auth(environment: Mapping[str, str], uri: str) -> None:
    if importlib.util.find_spec("flask_wtf") is None:
        raise TrackingError("--auth needs the module flask_wtf: pip install 'coordexp[server]'")
    password = environment.get(_ADMIN_PASSWORD, "")
    if len(password) < _MIN_PASSWORD and "MLFLOW_AUTH_CONFIG_PATH" not in environment and not has_users(uri):
        raise TrackingError(
            f"the first start with --auth makes the user admin: expected a password of at least {_MIN_PASSWORD} "
            f"characters in {_ADMIN_PASSWORD}"
        )


def _destination(artifacts: str) -> str:
    """Return a URI as it is, and a directory made and absolute."""
    if "://" in artifacts:
        return artifacts
    path = Path(artifacts).expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrackingError(f"artifacts cannot be kept in {path} ({error.strerror}): expected a directory") from error
    return str(path)


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """Take defaults from MLflow's own variables, so that they mean here what they mean there."""
    parser = argparse.ArgumentParser(prog="python -m coordexp.tracking.server", description=__doc__)
    parser.add_argument("--host", default=environment.get("MLFLOW_HOST", "127.0.0.1"))
    # Text defaults go through ``type`` as well, so that a variable that is no number is a sentence too.
    parser.add_argument("--port", type=int, default=environment.get("MLFLOW_PORT", "5000"))
    parser.add_argument("--workers", type=int, default=environment.get("MLFLOW_WORKERS", "2"))
    parser.add_argument(
        "--artifacts",
        default=environment.get("MLFLOW_ARTIFACTS_DESTINATION", "runs/mlflow-server"),
        help="directory or object store URI (s3://bucket/folder), which only the server needs access to",
    )
    parser.add_argument(
        "--allowed-hosts",
        default=environment.get("MLFLOW_SERVER_ALLOWED_HOSTS"),
        help="names under which clients call the server, with :PORT; others are answered 403",
    )
    parser.add_argument("--auth", action="store_true", help=f"ask for passwords; first admin's: {_ADMIN_PASSWORD}")
    parser.add_argument("--behind-proxy", action="store_true", help="a proxy in front asks for passwords")
    parser.add_argument("--upgrade", action="store_true", help="change tables of an older MLflow; back them up first")
    parser.add_argument("--prepare-only", action="store_true", help="only reach the database and make its tables")
    return parser


if __name__ == "__main__":
    sys.exit(main())
