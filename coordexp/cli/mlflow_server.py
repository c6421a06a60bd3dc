"""Serve MLflow from PostgreSQL, on loopback unless --host names another address.

The database comes from MLFLOW_BACKEND_STORE_URI, artifacts pass through the server (a client needs no
access to where they lie), and nothing secret is on a command line or in a file that others can read.
"""

import argparse
import os

from coordexp.cli.console import error_console, show

HELP = "MLflow for a lab, on PostgreSQL"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments; defaults are MLflow's own variables, so that they mean here what they mean there."""
    environment = os.environ
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
        help="names that clients use for the server, as HOST:PORT with commas; any other is refused (status 403)",
    )
    parser.add_argument(
        "--auth", action="store_true", help="ask for passwords; the first admin's is in MLFLOW_AUTH_ADMIN_PASSWORD"
    )
    parser.add_argument(
        "--behind-proxy",
        action="store_true",
        help="let --host be reachable from other machines without --auth, because a proxy in front asks for passwords",
    )
    parser.add_argument(
        "--upgrade",
        action="store_true",
        help="bring the tables of an older MLflow up to date; back up the database first",
    )
    parser.add_argument("--prepare-only", action="store_true", help="make the database's tables, and start no server")


def run(options: argparse.Namespace) -> int:
    """Check, prepare the database, and serve until stopped; return the server's exit code."""
    from coordexp.tracking.server import ServerOptions, prepare, serve

    server = ServerOptions(
        host=options.host,
        port=options.port,
        workers=options.workers,
        artifacts=options.artifacts,
        allowed_hosts=options.allowed_hosts,
        auth=options.auth,
    )
    ready, done = prepare(
        server,
        os.environ,
        behind_proxy=options.behind_proxy,
        upgrade=options.upgrade,
        prepare_only=options.prepare_only,
    )
    show(error_console(), f"tables of MLflow in PostgreSQL: {done}")
    return 0 if options.prepare_only else serve(ready, os.environ)
