"""A nested configuration -> the flat text parameters MLflow stores."""

import json
import re
from collections.abc import Mapping

from coordexp.config.trees import Tree, leaves
from coordexp.errors import ComparisonError
from coordexp.files import JsonValue, sha256_of_text

MAX_KEY_LENGTH = 250
MAX_VALUE_LENGTH = 6000
_KEY_PART = re.compile(r"[A-Za-z0-9_\-]+")


def flatten_config(config: Mapping[str, JsonValue]) -> dict[str, str]:
    """Flatten nested mappings to dotted keys with text values.

    Text stays as it is, everything else becomes JSON (``true``, ``null``, ``[0, 1]``). A mapping that
    is empty, or has a key that MLflow or the dots cannot carry, becomes one JSON value. A value
    longer than MLflow's limit ends in its SHA-256, so that two long values that differ stay different.

    Args:
        config: nested mappings of JSON values.

    Returns:
        Parameters by dotted key, in the order of ``config``.
    """
    return {key: _text(value) for key, value in leaves(config, is_whole=_is_whole).items()}


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


def _is_whole(key: str, mapping: Tree) -> bool:
    names = [f"{key}.{part}" for part in mapping if _KEY_PART.fullmatch(part)]
    return not mapping or len(names) < len(mapping) or max(map(len, names)) > MAX_KEY_LENGTH


def _text(value: JsonValue) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= MAX_VALUE_LENGTH:
        return text
    end = f"... sha256:{sha256_of_text(text)}"
    return text[: MAX_VALUE_LENGTH - len(end)] + end


def _short(text: str) -> str:
    return text if len(text) <= 100 else text[:100] + "..."
