"""A nested configuration -> the flat text parameters MLflow stores."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import PurePath

from coordexp.errors import ComparisonError

MAX_KEY_LENGTH = 250
MAX_VALUE_LENGTH = 6000
_KEY_PART = re.compile(r"[A-Za-z0-9_\-]+")


def flatten_config(config: Mapping[str, object]) -> dict[str, str]:
    """Flatten nested mappings to dotted keys with text values.

    Text stays as it is, everything else becomes JSON (``true``, ``null``, ``[0, 1]``). A mapping that
    is empty, or has a key that MLflow or the dots cannot carry, becomes one JSON value. A value
    longer than MLflow's limit ends in its SHA-256, so that two long values that differ stay different.

    Args:
        config: nested mappings of plain values, as pydantic's ``model_dump`` gives them.

    Returns:
        Parameters by dotted key, in the order of ``config``.
    """
    flat: dict[str, str] = {}
    for key, value in config.items():
        flat |= _flatten(str(key), value)
    return flat


def check_params(run_name: str, logged: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Refuse to continue a run under another configuration.

    Args:
        run_name: how the message calls the run.
        logged: parameters the run has; fewer than ``wanted`` if it was interrupted while they were logged.
        wanted: parameters it should have.

    Raises:
        ComparisonError: naming the first key that differs and both values.
    """
    for key in sorted(logged):
        if wanted.get(key) != logged[key]:
            now = repr(_short(wanted[key])) if key in wanted else "absent"
            raise ComparisonError(
                f"MLflow run {run_name} was started with {key} = {_short(logged[key])!r}, now it is {now}: "
                "expected the configuration it was started with, another experiment name, or a fresh start"
            )


def check_fingerprint(run_name: str, logged: str | None, wanted: str | None) -> None:
    """Refuse to continue a run under other code, data or weights.

    Args:
        run_name: how the message calls the run.
        logged: what the run has; None if it was never given one.
        wanted: what it should have.

    Raises:
        ComparisonError: if they differ.
    """
    if logged is not None and logged != wanted:
        raise ComparisonError(
            f"MLflow run {run_name} was started with fingerprint {logged}, now it is {wanted}: expected the same code, "
            "data and weights as at its start, another experiment name, or a fresh start"
        )


def _flatten(key: str, value: object) -> dict[str, str]:
    if isinstance(value, Mapping) and value and all(_carries(key, part) for part in value):
        flat: dict[str, str] = {}
        for part, item in value.items():
            flat |= _flatten(f"{key}.{part}", item)
        return flat
    return {key: _text(value)}


def _carries(prefix: str, part: object) -> bool:
    text = str(part)
    return _KEY_PART.fullmatch(text) is not None and len(prefix) + 1 + len(text) <= MAX_KEY_LENGTH


def _text(value: object) -> str:
    is_text = isinstance(value, (str, PurePath))
    text = str(value) if is_text else json.dumps(value, ensure_ascii=False, default=_plain)
    if len(text) <= MAX_VALUE_LENGTH:
        return text
    mark = f"... sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return text[: MAX_VALUE_LENGTH - len(mark)] + mark


def _plain(value: object) -> object:
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a configuration holds plain values only, got {type(value).__name__}")


def _short(text: str) -> str:
    return text if len(text) <= 100 else text[:100] + "..."
