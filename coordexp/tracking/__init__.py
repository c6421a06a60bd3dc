"""Runs in MLflow: rows are spooled on disk first, and replayed when the server is there.

Importing this package costs nothing; MLflow itself is imported by the first ``open_tracker``.
"""

from coordexp.tracking.connection import ServerUnreachableError
from coordexp.tracking.spool import RowSync
from coordexp.tracking.store import Tracker, open_tracker

__all__ = ["RowSync", "ServerUnreachableError", "Tracker", "open_tracker"]
