"""What several tests of evaluations share."""

from pathlib import Path

import pytest

from tests.support.evaluate_command import make_checkpoint, make_shapes


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("run") / "merged")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory) -> Path:
    return make_shapes(tmp_path_factory.mktemp("shapes") / "data")
