"""Runs in MLflow: rows are on disk first, and are sent whenever the server is there.

Importing this package is cheap. The first ``open_tracker`` imports MLflow itself.
"""

from coordexp.tracking.connection import ServerUnreachableError
from coordexp.tracking.spool import RowSync
from coordexp.tracking.store import Tracker, open_tracker

__all__ = ["RowSync", "ServerUnreachableError", "Tracker", "open_tracker"]
