"""The PostgreSQL behind a shared MLflow server: reached, and given MLflow's tables once, before the server starts."""

import contextlib
import os
import re
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from coordexp.errors import TrackingError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

DATABASE_VARIABLE = "MLFLOW_BACKEND_STORE_URI"
EXPECTED = "postgresql://USER:PASSWORD@HOST:5432/DATABASE"

_CONNECT_SECONDS = 5
_LOCK = 0x636F6F7264  # "coord": one of several servers that start together makes the tables


def database_uri(environment: Mapping[str, str]) -> str:
    """Return the database's URI; only the environment may hold it, as a command line shows in the process list.

    Raises:
        TrackingError: if it is missing or names no PostgreSQL database.
    """
    uri = environment.get(DATABASE_VARIABLE, "")
    if not uri:
        raise TrackingError(f"{DATABASE_VARIABLE} is not set: expected {EXPECTED} in the environment")
    if not re.match(r"postgresql(\+psycopg2)?://[^/]*/[^/?]+", uri):
        raise TrackingError(f"{DATABASE_VARIABLE} names no PostgreSQL database: expected {EXPECTED}")
    # SQLAlchemy 2.1 would take psycopg 3 for the bare name, which is not what the extra installs.
    return re.sub(r"^postgresql:", "postgresql+psycopg2:", uri)


def prepare_database(uri: str, *, upgrade: bool = False) -> str:
    """Reach the database and see that its tables are those of the installed MLflow.

    Empty, it gets them; tables of an older MLflow are changed only if asked, because that is not undone.

    Args:
        uri: see :func:`database_uri`.
        upgrade: bring tables of an older MLflow up to date.

    Returns:
        What was done: ``created``, ``upgraded`` or ``up to date``.

    Raises:
        TrackingError: if it cannot be reached, or its tables are of another MLflow.
    """
    with _connected(uri) as connection:
        from sqlalchemy import inspect, text

        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK})
        tables = inspect(connection).get_table_names()
        found, latest, known = _revisions(connection)
        if found == latest:
            return "up to date"
        if found is not None and found not in known:
            raise TrackingError(f"{_place(uri)} has tables of a newer MLflow than is installed: expected that version")
        if "experiments" in tables and not upgrade:
            raise TrackingError(f"{_place(uri)} has tables of an older MLflow: back it up, then start with --upgrade")
        connection.commit()  # the lock is the session's, not the transaction's: migrations must not wait for us
        _migrate(uri)
        return "upgraded" if "experiments" in tables else "created"


def has_users(uri: str) -> bool:
    """Tell whether a server with passwords ran on this database before, so that it has its first user."""
    with _connected(uri) as connection:
        from sqlalchemy import inspect, text

        if "users" not in inspect(connection).get_table_names():
            return False
        return connection.execute(text("SELECT count(*) FROM users")).scalar_one() > 0


@contextlib.contextmanager
def _connected(uri: str) -> "Generator[Connection]":
    """Connect for as long as the block lasts; errors are one sentence without the password."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError
    from sqlalchemy.pool import NullPool

    try:
        engine = create_engine(uri, poolclass=NullPool, connect_args={"connect_timeout": _CONNECT_SECONDS})
    except ModuleNotFoundError as error:
        raise TrackingError(f"PostgreSQL needs the module {error.name}: pip install 'coordexp[server]'") from error
    except (ArgumentError, ValueError):  # they quote the URI, or a part of its password
        raise TrackingError(f"{DATABASE_VARIABLE} cannot be read: expected {EXPECTED}, specials as %40") from None
    try:
        with engine.connect() as connection:
            yield connection
    except SQLAlchemyError as error:
        raise TrackingError(f"{_place(uri)} cannot be used: {_reason(error)}") from None


def _revisions(connection: "Connection") -> tuple[str | None, str | None, set[str]]:
    """Return the schema the database has, the one MLflow wants, and all that MLflow knows."""
    import mlflow
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(mlflow.__file__).parent / "store" / "db_migrations"))
    scripts = ScriptDirectory.from_config(config)
    known = {script.revision for script in scripts.walk_revisions()}
    return MigrationContext.configure(connection).get_current_revision(), scripts.get_current_head(), known


def _migrate(uri: str) -> None:
    """Do what ``mlflow db upgrade`` does, without a command line that shows the password."""
    from mlflow.db import upgrade

    assert upgrade.callback is not None
    upgrade.callback(uri)


def _place(uri: str) -> str:
    from sqlalchemy.engine import make_url

    url = make_url(uri)
    return f"database {url.database} at {url.host or os.environ.get('PGHOST', 'localhost')}:{url.port or 5432}"


def _reason(error: Exception) -> str:
    """Return what PostgreSQL said, in one line."""
    text = str(getattr(error, "orig", None) or error).strip().splitlines()
    said = [line.split("FATAL:")[-1].strip() for line in text if line.strip()]
    line = said[0] if said else type(error).__name__
    return line.split("failed: ")[-1] or line
