"""A real sqlite store for each test."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from coordexp.tracking import Tracker, open_tracker


@pytest.fixture
def uri(tmp_path: Path, migrated_database: Path) -> str:
    return f"sqlite:///{shutil.copy(migrated_database, tmp_path / 'mlflow.db')}"


@pytest.fixture
def tracker(uri: str, tmp_path: Path) -> Tracker:
    return open_tracker(uri, experiment="tiny", artifact_root=tmp_path / "artifacts")


@pytest.fixture
def start(tracker: Tracker) -> Callable[..., str]:
    def start_run(key: str = "tiny/A/s0", **changes: object) -> str:
        defaults: dict[str, object] = {"group": "A", "seed": 0, "fingerprint": "f0", "params": {"a": 1}, "tags": {}}
        return tracker.start_run(key, parent_id="0" * 32, **(defaults | changes))

    return start_run
