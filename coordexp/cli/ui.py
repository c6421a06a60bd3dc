"""Open MLflow's own pages on the runs of an experiment.

    coordexp ui             the experiment in which a run was started last
    coordexp ui tiny

If the runs are in a database, this starts MLflow's server on this machine, prints its address and waits for Ctrl-C. If
a tracking server is configured, it prints the address of the experiment on that server and ends.
"""

import argparse
import os
from pathlib import Path

from coordexp.cli.console import output_console, show
from coordexp.errors import ResourceError

HELP = "MLflow's pages on an experiment's runs, until Ctrl-C"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", nargs="?", help="default: the one in which a run was started last")
    parser.add_argument("--tracking-uri", help="default: MLFLOW_TRACKING_URI, else the database in --runs-dir")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), help="default: runs")


def run(options: argparse.Namespace) -> None:
    """Print the address of an experiment's runs in MLflow, and serve it if no server does.

    Raises:
        ResourceError: if MLflow's server ends by itself.
    """
    from coordexp.config.load import database_uri
    from coordexp.report.records.load import experiment_id_of
    from coordexp.tracking.charts import runs_address
    from coordexp.tracking.connection import sqlite_path, without_secrets
    from coordexp.tracking.ui import mlflow_pages

    runs_dir: Path = options.runs_dir.absolute()
    uri: str = options.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or database_uri(runs_dir)
    experiment_id = experiment_id_of(uri, options.experiment)
    console = output_console()
    if sqlite_path(uri) is None:
        show(console, f"{without_secrets(uri).rstrip('/')}/{runs_address(experiment_id)}")
        return
    with mlflow_pages(uri, runs_dir / "mlartifacts") as (address, process):
        show(console, f"{address}/{runs_address(experiment_id)}")
        show(console, "Ctrl-C ends it.")
        try:
            process.wait()
        except KeyboardInterrupt:
            return
    raise ResourceError(f"MLflow's server has ended by itself (exit code {process.returncode}); start it again")
