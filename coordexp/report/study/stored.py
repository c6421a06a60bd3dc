"""Statistics as JSON values and back, for the cache beside a report."""

import json

from pydantic import TypeAdapter

from coordexp.files import JsonValue
from coordexp.statistics.results import Comparison, Convergence, CurvePoint, Estimate, from_json, to_json

_Parts = tuple[
    dict[str, tuple[CurvePoint, ...]],
    dict[str, Estimate],
    list[tuple[str, str, Estimate]],
    list[tuple[float, str, Estimate | None]],
    list[tuple[float, str, str, Estimate]],
]
_PARTS: TypeAdapter[_Parts] = TypeAdapter(_Parts)


def comparison_json(comparison: Comparison | None) -> JsonValue:
    """Return a comparison as a JSON value."""
    return None if comparison is None else json.loads(to_json(comparison))


def comparison_of(value: JsonValue) -> Comparison | None:
    """Read what :func:`comparison_json` made."""
    return None if value is None else from_json(json.dumps(value))


def convergence_json(found: Convergence) -> JsonValue:
    """Return a convergence as a JSON value; pairs, which JSON has no keys for, become lists."""
    parts: _Parts = (
        dict(found.curves),
        dict(found.area),
        [(a, b, value) for (a, b), value in found.area_difference.items()],
        [(fraction, group, value) for fraction, groups in found.steps_to.items() for group, value in groups.items()],
        [
            (fraction, a, b, value)
            for fraction, pairs in found.steps_to_difference.items()
            for (a, b), value in pairs.items()
        ],
    )
    return _PARTS.dump_python(parts, mode="json")


def convergence_of(value: JsonValue) -> Convergence:
    """Read what :func:`convergence_json` made."""
    # Through JSON text: its tuples are lists, which Python objects may not stand in for.
    curves, area, area_difference, steps_to, steps_to_difference = _PARTS.validate_json(json.dumps(value))
    reached: dict[float, dict[str, Estimate | None]] = {}
    for fraction, group, estimate in steps_to:
        reached.setdefault(fraction, {})[group] = estimate
    differences: dict[float, dict[tuple[str, str], Estimate]] = {fraction: {} for fraction in reached}
    for fraction, a, b, difference in steps_to_difference:
        differences.setdefault(fraction, {})[a, b] = difference
    return Convergence(
        curves=curves,
        area=area,
        area_difference={(a, b): difference for a, b, difference in area_difference},
        steps_to=reached,
        steps_to_difference=differences,
    )
