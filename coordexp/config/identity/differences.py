"""Whether runs differ in the declared factor only.

Four kinds of differences are compared:

- keys of the configuration;
- hashes of what the keys lead to: data, the base's weights and each of its files, token stream, evaluation;
- the code: versions of packages and hashes of our sources;
- what each run's worker found itself to compute with (``worker``): threads, precision, switches, versions.

A hash may differ only if a declared difference explains it: with the factor ``data.structure`` the token streams
differ, with the factor ``objective`` they must not. A seed explains another order of samples, so every pair of runs
with one seed must agree in it; it explains no other base. Code may never differ. But groups that compute other loss
terms have other sources, each of which one of the two runs lacks.

What changes rounding only may differ, since a run may go on with more CPUs or fewer workers after others have finished.
Groups cannot set it, and a comparison reports it (:func:`rounding_only`).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from coordexp.config.identity.code import is_metric
from coordexp.config.identity.fingerprint import Fingerprint
from coordexp.config.keys import STEP_IMAGES, STEP_KEYS, is_rounding, key_of
from coordexp.config.schema import RunConfig
from coordexp.config.schema.fields import Part
from coordexp.config.trees import leaves, merged, nested, within
from coordexp.errors import ComparisonError
from coordexp.files import JsonValue

Differences = dict[str, tuple[JsonValue, JsonValue]]

WORKER = "worker."
_MAX_SHOWN = 30
"""An older checkout differs in every source, for every run."""

_HASHES: dict[str, Part] = {"data": "data", "weights": "base", "tokens": "tokens", "evaluation": "evaluation"}
"""Hash -> the part of a run it is of: a declared key that decides this part explains that the hash differs."""

_SETTINGS_OF_BASE = ("base/", f"{WORKER}model.")
"""Beginnings of keys that are explained by what decides the base."""

_DECIDED_BY: dict[str, tuple[str, ...]] = {
    "deepspeed/": ("cluster.strategy",),
    f"{WORKER}precision.": ("training.precision", "cluster.strategy"),
    f"{WORKER}threads": ("training.num_threads", "cluster.cpus_per_worker"),
    f"{WORKER}deterministic": ("training.deterministic",),
    f"{WORKER}cudnn.": ("training.deterministic",),
    f"{WORKER}environment.CUBLAS_WORKSPACE_CONFIG": ("training.deterministic",),
}
"""Beginning of the key of a file, or of what a worker finds -> the keys that explain it."""


@dataclass(frozen=True)
class KeyDifference:
    """A key of :func:`diff` in which a run differs from another; the value is None if a run has no such key."""

    key: str
    run: str
    value: JsonValue
    other_run: str
    other_value: JsonValue


def diff(a: Fingerprint | RunConfig, b: Fingerprint | RunConfig) -> Differences:
    """Return every difference as ``dotted key -> (value in a, value in b)``; the value is None if one lacks the key.

    Of configurations all keys are compared, also those that change no number. Of fingerprints the keys are
    ``objective.use_coord_ce``, ``packages.torch``, ``data``, ``weights``, ``tokens``, ``evaluation``,
    ``base/config.json``, ``worker.threads`` and, after all others, sources such as ``coordexp/losses/criterion.py``.
    What a worker finds is compared only if both runs have started.
    """
    values_of_a = flat_values(a)
    values_of_b = flat_values(b)
    keys = values_of_a.keys() | values_of_b.keys()
    if isinstance(a, Fingerprint) and isinstance(b, Fingerprint) and not (a.worker and b.worker):
        keys = {key for key in keys if not key.startswith(WORKER)}
    differences: Differences = {}
    for key in sorted(keys, key=lambda key: (_is_source(key), key)):
        if values_of_a.get(key) != values_of_b.get(key):
            differences[key] = (values_of_a.get(key), values_of_b.get(key))
    return differences


def flat_values(item: Fingerprint | RunConfig) -> dict[str, JsonValue]:
    """Return all that :func:`diff` compares, by its keys."""
    if isinstance(item, RunConfig):
        return leaves(item.model_dump(mode="json"))
    hashes = {"data": item.data, "weights": item.weights, "tokens": item.tokens, "evaluation": item.evaluation}
    packages = {f"packages.{name}": version for name, version in item.packages.items()}
    worker = {f"{WORKER}{name}": value for name, value in item.worker.items()}
    return leaves(item.config) | packages | hashes | dict(item.files) | worker | dict(item.code)


def rounding_only(differences: Differences) -> Differences:
    """Return the differences that change last bits only; whether there is a GPU at all is not among them."""
    rounding: Differences = {}
    for key, values in differences.items():
        is_gpu_against_none = key == "cluster.gpus_per_worker" and not all(values)
        if is_rounding(key) and not is_gpu_against_none:
            rounding[key] = values
    return rounding


def went_on(stored: Fingerprint, now: Fingerprint) -> Fingerprint:
    """Return the stored fingerprint of a run that goes on, with the values that its rounding keys have now."""
    config = dict(stored.config)
    values_in_turn = dict(stored.went_on)
    for key, (value_before, value_now) in rounding_only(diff(stored, now)).items():
        config = merged(config, nested(key.split("."), value_now))
        values_in_turn[key] = [*values_in_turn.get(key, [value_before]), value_now]
    return replace(stored, config=config, went_on=values_in_turn)


def outside_factor(differences: Differences, factor: Sequence[str], went_on: Iterable[str]) -> Differences:
    """Return the differences that a declared factor neither names nor explains, and that are more than rounding.

    Args:
        differences: of two runs.
        factor: dotted keys or sections.
        went_on: rounding keys of which one of the runs has had several values.
    """
    rounding = rounding_only(differences)
    declared = {key for key in differences if key not in _HASHES and within(key, tuple(factor))}
    decided_parts: set[Part] = set()
    for name in declared:
        key = key_of(name)
        if key is not None:
            decided_parts |= key.decides
    explaining = {*declared, *rounding, *went_on}

    def is_explained(key: str) -> bool:
        if key in declared or key in rounding or _HASHES.get(key) in decided_parts:
            return True
        if key == STEP_IMAGES and not declared.isdisjoint(STEP_KEYS):
            return True
        if "base" in decided_parts and key.startswith(_SETTINGS_OF_BASE):
            return True
        for beginning, names in _DECIDED_BY.items():
            if key.startswith(beginning) and not explaining.isdisjoint(names):
                return True
        if None not in differences[key]:
            return False
        # Other terms have other sources, and a metric that one run lacks changes no number of the others.
        return is_metric(key) or ("terms" in decided_parts and _is_source(key))

    return {key: values for key, values in differences.items() if not is_explained(key)}


def find_differences(fingerprints: Mapping[str, Fingerprint], factor: Sequence[str]) -> list[KeyDifference]:
    """Return what a declared factor neither names nor explains, run by run.

    A run is compared with the first run of its seed, and the first run of a seed with the first run of all: only runs
    of one seed have the same order of samples.

    Args:
        fingerprints: by the name of the run.
        factor: dotted keys or sections.
    """
    first_of_seed: dict[str, str] = {}
    first_with_source: dict[str, str] = {}
    found_differences: list[KeyDifference] = []
    # Runs whose worker has started come first: only with them can the others' workers be compared.
    for name, current in sorted(fingerprints.items(), key=lambda item: not item[1].worker):
        reference = first_of_seed.setdefault(str(flat_values(current)["experiment.seed"]), name)
        if reference == name:
            reference = next(iter(first_of_seed.values()))
        went_on_keys = {*fingerprints[reference].went_on, *current.went_on}
        differences = diff(fingerprints[reference], current)
        differences = outside_factor(differences, (*factor, "experiment.seed"), went_on_keys)
        found_differences += [KeyDifference(key, reference, a, name, b) for key, (a, b) in differences.items()]
        for path, source_hash in current.code.items():
            # The reference may lack the source of a term. All runs that have it must have the same.
            first = first_with_source.setdefault(path, name)
            hash_of_first = fingerprints[first].code[path]
            if hash_of_first != source_hash and path not in differences:
                found_differences.append(KeyDifference(path, first, hash_of_first, name, source_hash))
    return found_differences


def check_comparable(fingerprints: Mapping[str, Fingerprint], factor: Sequence[str]) -> None:
    """Refuse to compare runs that differ in more than the declared factor; see :func:`find_differences`.

    Raises:
        ComparisonError: with a table of the differences.
    """
    differences = find_differences(fingerprints, factor)
    if differences:
        raise ComparisonError(
            f"runs differ in more than the declared factor ({', '.join(factor)}), so they cannot be compared:\n"
            f"{differences_table(differences)}\n"
            "--allow-differences shows them beside the results instead"
        )


def differences_table(differences: Sequence[KeyDifference]) -> str:
    """Return differences as lines of plain text: key, one run and its value, the other and its value."""
    rows: list[tuple[str, str, str]] = []
    for item in differences[:_MAX_SHOWN]:
        cell_of_run = f"{item.run}: {shown_value(item.value)}"
        cell_of_other = f"{item.other_run}: {shown_value(item.other_value)}"
        rows.append((item.key, cell_of_run, cell_of_other))
    key_width = max((len(key) for key, _, _ in rows), default=0)
    run_width = max((len(cell) for _, cell, _ in rows), default=0)
    lines = [f"  {key:<{key_width}}  {cell:<{run_width}}  {other_cell}" for key, cell, other_cell in rows]
    if len(differences) > _MAX_SHOWN:
        lines.append(f"  and {len(differences) - _MAX_SHOWN} more")
    return "\n".join(lines)


def _is_source(key: str) -> bool:
    return key.startswith("coordexp/")


def shown_value(value: JsonValue) -> str:
    """Return a value for a table, at most 24 characters long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 24 else f"{text[:16]}..."
