"""The fixtures of models that generate."""

from tests.support.model_fixtures import base, native, spec

__all__ = ["base", "native", "spec"]
