"""Fixtures shared by all tests."""

from pathlib import Path

import pytest

_COCO_TINY = Path(__file__).parents[1].parent / "shared" / "data" / "coco_tiny"


@pytest.fixture(scope="session")
def coco_tiny() -> Path:
    """38 real COCO images with their annotations, beside the checkout; never committed."""
    if not _COCO_TINY.is_dir():
        pytest.skip(f"the real COCO sample is not at {_COCO_TINY}")
    return _COCO_TINY
