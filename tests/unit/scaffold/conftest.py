"""What is generated goes to folders of one test."""

from tests.unit.losses.conftest import terms_dir

__all__ = ["terms_dir"]
