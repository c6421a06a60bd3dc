"""A shared MLflow server on PostgreSQL; nothing secret is on its command line or in a file that others can read."""

import configparser
import contextlib
import importlib.util
import ipaddress
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from coordexp.errors import TrackingError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

DATABASE_VARIABLE = "MLFLOW_BACKEND_STORE_URI"
_EXPECTED = "postgresql://USER:PASSWORD@HOST:5432/DATABASE"
_ADMIN_PASSWORD = "MLFLOW_AUTH_ADMIN_PASSWORD"
_MIN_PASSWORD = 12
_AUTH_CACHE_SECONDS = 60  # else every request hashes the password again
_CONNECT_SECONDS = 5
_ADVISORY_LOCK = 0x636F6F7264  # "coord": one of several servers that start together makes the tables


@dataclass(frozen=True)
class ServerOptions:
    """What MLflow's server is started with.

    Attributes:
        host: address to listen on.
        port: port to listen on.
        workers: processes that answer.
        artifacts: directory or URI of an object store.
        allowed_hosts: names under which clients may call it; None for MLflow's own rule.
        auth: whether it asks for passwords.
    """

    host: str = "127.0.0.1"
    port: int = 5000
    workers: int = 2
    artifacts: str = "runs/mlflow-server"
    allowed_hosts: str | None = None
    auth: bool = False


def prepare(
    options: ServerOptions,
    environment: Mapping[str, str],
    *,
    behind_proxy: bool = False,
    upgrade: bool = False,
    prepare_only: bool = False,
) -> tuple[ServerOptions, str]:
    """Check what the server needs and prepare the database.

    Args:
        options: of the server.
        environment: variables of this process.
        behind_proxy: a proxy in front asks for passwords.
        upgrade: bring tables of an older MLflow up to date.
        prepare_only: no server will be started.

    Returns:
        The options with the artifacts' directory made and absolute, and what was done to the tables.

    Raises:
        TrackingError: naming what the user can mend.
    """
    uri = database_uri(environment)
    check_exposure(options.host, auth=options.auth, behind_proxy=behind_proxy)
    if not prepare_only:
        check_port(options.host, options.port)
        options = replace(options, artifacts=artifact_store(options.artifacts))
    done = prepare_database(uri, upgrade=upgrade)
    if options.auth:
        _check_auth(environment, uri)
    return options, done


def check_exposure(host: str, *, auth: bool, behind_proxy: bool) -> None:
    """Refuse to serve without passwords on an address that other machines can reach: anyone there could change runs.

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
    """Refuse an address that cannot be listened on: MLflow would say so somewhere in a long log.

    Raises:
        TrackingError: if the port is taken or out of range, or the host is not an address of this machine.
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


def artifact_store(artifacts: str) -> str:
    """Return a URI unchanged, and the absolute path of a directory, which is created.

    Raises:
        TrackingError: if the directory cannot be created, or S3's client is missing: MLflow would notice at an upload.
    """
    if artifacts.startswith("s3://") and importlib.util.find_spec("boto3") is None:
        raise TrackingError(f"artifacts in {artifacts} need the module boto3: pip install boto3")
    if "://" in artifacts:
        return artifacts
    path = Path(artifacts).expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrackingError(f"artifacts cannot be kept in {path} ({error.strerror}): expected a directory") from error
    return str(path)


def database_uri(environment: Mapping[str, str]) -> str:
    """Return the database's URI; only the environment may hold it, as a command line shows in the process list.

    Raises:
        TrackingError: if it is missing or names no PostgreSQL database.
    """
    uri = environment.get(DATABASE_VARIABLE, "")
    if not uri:
        raise TrackingError(f"{DATABASE_VARIABLE} is not set: expected {_EXPECTED} in the environment")
    if not re.match(r"postgresql(\+psycopg2)?://[^/]*/[^/?]+", uri):
        raise TrackingError(f"{DATABASE_VARIABLE} names no PostgreSQL database: expected {_EXPECTED}")
    # SQLAlchemy 2.1 would take psycopg 3 for the bare name, which is not what the extra installs.
    return re.sub(r"^postgresql:", "postgresql+psycopg2:", uri)


def prepare_database(uri: str, *, upgrade: bool = False) -> str:
    """Connect to the database and check that its tables are those of the installed MLflow.

    An empty database gets them; tables of an older MLflow are changed only on request, since that cannot be undone.

    Args:
        uri: see :func:`database_uri`.
        upgrade: bring tables of an older MLflow up to date.

    Returns:
        What was done: ``created``, ``upgraded`` or ``up to date``.

    Raises:
        TrackingError: if it cannot be reached, or its tables are of another MLflow.
    """
    with _connected(uri) as connection:
        import mlflow.db
        from alembic.config import Config
        from alembic.runtime.migration import MigrationContext
        from alembic.script import ScriptDirectory
        from sqlalchemy import inspect, text

        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _ADVISORY_LOCK})
        config = Config()
        config.set_main_option("script_location", str(Path(mlflow.__file__).parent / "store" / "db_migrations"))
        scripts = ScriptDirectory.from_config(config)
        found = MigrationContext.configure(connection).get_current_revision()
        has_tables = "experiments" in inspect(connection).get_table_names()
        if found == scripts.get_current_head():
            return "up to date"
        if found is not None and found not in {script.revision for script in scripts.walk_revisions()}:
            raise TrackingError(f"{_place(uri)} has tables of a newer MLflow than is installed: expected that version")
        if has_tables and not upgrade:
            raise TrackingError(f"{_place(uri)} has tables of an older MLflow: back it up, then start with --upgrade")
        connection.commit()  # the lock is the session's, not the transaction's: migrations must not wait for us
        assert mlflow.db.upgrade.callback is not None
        mlflow.db.upgrade.callback(uri)  # `mlflow db upgrade`, without a command line that shows the password
        return "upgraded" if has_tables else "created"


@contextlib.contextmanager
def _connected(uri: str) -> "Generator[Connection]":
    """Connect for as long as the block lasts; errors are one sentence without the password."""
    from sqlalchemy import create_engine
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
    from sqlalchemy.pool import NullPool

    try:
        make_url(uri)
        engine = create_engine(uri, poolclass=NullPool, connect_args={"connect_timeout": _CONNECT_SECONDS})
    except ModuleNotFoundError as error:
        raise TrackingError(f"PostgreSQL needs the module {error.name}: pip install 'coordexp[server]'") from error
    except (ArgumentError, ValueError):  # they quote the URI, or a part of its password
        raise TrackingError(f"{DATABASE_VARIABLE} cannot be read: expected {_EXPECTED}, specials as %40") from None
    try:
        with engine.connect() as connection:
            yield connection
    except SQLAlchemyError as error:
        said = error.orig if isinstance(error, DBAPIError) else error
        line = next((line for line in str(said).splitlines() if line.strip()), type(error).__name__)
        reason = line.split("FATAL:")[-1].split("failed: ")[-1].strip()
        raise TrackingError(f"{_place(uri)} cannot be used: {reason}") from None


def _place(uri: str) -> str:
    from sqlalchemy.engine import make_url

    url = make_url(uri)
    return f"database {url.database} at {url.host or os.environ.get('PGHOST', 'localhost')}:{url.port or 5432}"


def _check_auth(environment: Mapping[str, str], uri: str) -> None:
    """Refuse ``--auth`` without what it needs: a module, and for the first start the password of its first user."""
    if importlib.util.find_spec("flask_wtf") is None:
        raise TrackingError("--auth needs the module flask_wtf: pip install 'coordexp[server]'")
    if len(environment.get(_ADMIN_PASSWORD, "")) >= _MIN_PASSWORD or "MLFLOW_AUTH_CONFIG_PATH" in environment:
        return
    with _connected(uri) as connection:
        from sqlalchemy import inspect, text

        has_table = "users" in inspect(connection).get_table_names()
        has_users = has_table and connection.execute(text("SELECT count(*) FROM users")).scalar_one() > 0
    if not has_users:
        raise TrackingError(
            f"the first start with --auth makes the user admin: expected a password of at least {_MIN_PASSWORD} "
            f"characters in {_ADMIN_PASSWORD}"
        )


def server_command(options: ServerOptions) -> list[str]:
    """Return the command line of MLflow's server; it holds no secret."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", options.host, "--port", str(options.port)]
    command += ["--workers", str(options.workers), "--serve-artifacts"]
    command += ["--artifacts-destination", options.artifacts]
    if options.allowed_hosts:
        command += ["--allowed-hosts", options.allowed_hosts]
    return [*command, "--app-name", "basic-auth"] if options.auth else command


def server_environment(environment: Mapping[str, str], uri: str, *, auth_config: Path | None) -> dict[str, str]:
    """Return the server's environment: the database, and MLflow's extras that cost memory switched off."""
    own = {DATABASE_VARIABLE: uri, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    if auth_config is not None:
        own["MLFLOW_AUTH_CONFIG_PATH"] = str(auth_config)
        # Signs one form only; several servers behind one name need the same and set it.
        signs = "MLFLOW_FLASK_SERVER_SECRET_KEY"
        own[signs] = environment.get(signs, secrets.token_urlsafe(32))
    # Those of a client, and one that would let clients past the server.
    removed = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "MLFLOW_DEFAULT_ARTIFACT_ROOT")
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


def serve(options: ServerOptions, environment: Mapping[str, str]) -> int:
    """Run MLflow's server and its workers until they end, and return the exit code.

    A signal to this process reaches all of them.
    """
    uri = database_uri(environment)
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
