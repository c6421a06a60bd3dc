"""What several tests share: a checkpoint to train, one to evaluate with images, and a folder for runs."""

from pathlib import Path

import pytest

from tests.support.evaluate_command import make_checkpoint, make_shapes
from tests.support.training import write_base


@pytest.fixture(scope="session")
def base(tmp_path_factory) -> Path:
    return write_base(tmp_path_factory.mktemp("base") / "base")


@pytest.fixture(scope="module")
def runs_dir(make_runs_dir) -> Path:
    return make_runs_dir()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("run") / "merged")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory) -> Path:
    return make_shapes(tmp_path_factory.mktemp("shapes") / "data")
