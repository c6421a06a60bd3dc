"""A point of a search: a value for each searched key, and how it is written. Reports read it without Optuna."""

from collections.abc import Mapping

from coordexp.config.schema.search import Number

Point = dict[str, Number]


def point_text(point: Mapping[str, Number]) -> str:
    """Return ``lambda_coord 0.5, lambda_coord_ce 1``."""
    return ", ".join(f"{short_key(key)} {value:g}" for key, value in point.items())


def short_key(key: str) -> str:
    """Return ``lambda_coord`` of ``objective.lambda_coord``, and ``spread`` of ``objective.extra.spread.weight``."""
    names = key.split(".")
    return names[-2] if names[-1] == "weight" and names[:2] == ["objective", "extra"] else names[-1]
