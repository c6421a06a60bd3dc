"""A private Ray for tests: its own folder and no cluster but its own."""

import contextlib
import shutil
import tempfile
from collections.abc import Generator

import pytest


@contextlib.contextmanager
def private_ray_environment() -> Generator[tuple[str, pytest.MonkeyPatch]]:
    """Keep Ray's files apart from any other session's; yield their folder and what patches the environment."""
    temporary = tempfile.mkdtemp(prefix="coordexp-ray-", dir="/tmp")  # short: Ray puts sockets there
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", temporary)
        patch.setenv("RAY_TRAIN_ENABLE_STATE_ACTOR_RECONCILIATION", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        yield temporary, patch
    shutil.rmtree(temporary, ignore_errors=True)
