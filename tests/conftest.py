"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure: examples have no deadline, the test has its timeout. The same code is tested with the
# same examples; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("repeat", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))

# Before torch is imported: a small model on several threads of a busy machine is slower, not faster.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_COCO_TINY = Path(__file__).parents[1].parent / "shared" / "data" / "coco_tiny"


@pytest.fixture(scope="session")
def coco_tiny() -> Path:
    """38 real COCO images with their annotations, beside the checkout; never committed."""
    if not _COCO_TINY.is_dir():
        pytest.skip(f"the real COCO sample is not at {_COCO_TINY}")
    return _COCO_TINY


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database, to be copied: making one takes seconds."""
    from coordexp.tracking.connection import connect

    path = tmp_path_factory.mktemp("mlflow") / "deep" / "template.db"
    connect(f"sqlite:///{path}")
    return path
