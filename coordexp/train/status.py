"""The state of a run, as one small file in its directory."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from coordexp.files import write_json

State = Literal["running", "finished", "failed", "stopped"]


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands.

    Attributes:
        state: running, finished, failed or stopped.
        message: for a failed run, why, in one sentence.
        step: optimizer steps done.
        seconds: wall time of the run so far.
    """

    state: State
    message: str = ""
    step: int = 0
    seconds: float = 0.0


def read_status(run_dir: Path) -> RunStatus | None:
    """Return the status of a run, or None if it never started."""
    path = run_dir / "status.json"
    return RunStatus(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def write_status(run_dir: Path, status: RunStatus) -> None:
    """Replace the status of a run."""
    write_json(run_dir / "status.json", asdict(status))
