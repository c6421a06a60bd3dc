"""What a run in MLflow has, as the one process that writes to it knows without asking."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow.entities import Run

MESSAGE = "message"
ROWS_LOGGED = "rows_logged"
LAST_STEP = "last_step"


@dataclass
class KnownRun:
    """State of a run after the last call that succeeded.

    Attributes:
        status: MLflow's name of it.
        rows: rows of its ``metrics.jsonl`` that MLflow has.
        best: the last value of each metric, among them the ``best/...`` ones.
        message: why it failed, or "".
    """

    status: str
    rows: int
    best: dict[str, float]
    message: str

    @staticmethod
    def of(run: "Run") -> "KnownRun":
        """Take it from a run as MLflow answers it."""
        tags = run.data.tags
        return KnownRun(run.info.status, int(tags.get(ROWS_LOGGED, 0)), dict(run.data.metrics), tags.get(MESSAGE, ""))
