"""What several tests share: a checkpoint to train, one to evaluate with images, a folder for runs, a private Ray."""

from pathlib import Path

import pytest

from coordexp.cluster.session import ray_session
from tests.support.evaluate_command import make_checkpoint, make_shapes
from tests.support.private_ray import private_ray_environment
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


@pytest.fixture(scope="module")
def ray_environment():
    with private_ray_environment():
        yield


@pytest.fixture(scope="module")
def ray_on_two_cpus(ray_environment):
    with ray_session(threads=1) as ready:
        ready.result()
        yield
