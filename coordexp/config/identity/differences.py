"""Whether runs differ in the declared factor only.

Four kinds of differences are compared: keys of the configuration, hashes of what the keys lead to (data, the base's
weights and each of its files, token stream, evaluation), the code: versions of packages and hashes of our sources; and
what each run's worker found itself to compute with (``worker``: threads, precision, switches, versions).
A hash may differ only where a declared difference explains it: with the factor ``data.structure`` the token
streams differ, with the factor ``objective`` they must not. A seed explains another order
of samples, so every pair of runs with one seed must agree in it; it explains no other base. Code may never differ; but
groups that compute other loss terms have other sources, each of which one of the two runs lacks.

What changes rounding only may differ, since a run may go on with more CPUs or fewer workers after others have finished;
groups cannot set it, and a comparison reports it (:func:`rounding_only`).
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
_MAX_SHOWN = 30  # an older checkout differs in every source, for every run
# A hash, and the part of a run it is of: a declared key that decides this part explains that the hash differs.
_HASHES: dict[str, Part] = {"data": "data", "weights": "base", "tokens": "tokens", "evaluation": "evaluation"}
_SETTINGS = ("base/", f"{WORKER}model.")  # explained by what decides the base
# Which keys explain a file, or what a worker finds.
_DECIDED_BY: dict[str, tuple[str, ...]] = {
    "deepspeed/": ("cluster.strategy",),
    f"{WORKER}precision.": ("training.precision", "cluster.strategy"),
    f"{WORKER}threads": ("training.num_threads", "cluster.cpus_per_worker"),
    f"{WORKER}deterministic": ("training.deterministic",),
    f"{WORKER}cudnn.": ("training.deterministic",),
    f"{WORKER}environment.CUBLAS_WORKSPACE_CONFIG": ("training.deterministic",),
}


@dataclass(frozen=True)
class KeyDifference:
    """A key of :func:`diff` in which a run differs from the one it is compared with; None where one has no such key."""

    key: str
    run: str
    value: JsonValue
    other_run: str
    other_value: JsonValue


def diff(a: Fingerprint | RunConfig, b: Fingerprint | RunConfig) -> Differences:
    """Return every difference as ``dotted key -> (value in a, value in b)``; None where one has no such key.

    Of configurations all keys are compared, also those that change no number. Of fingerprints the keys are
    ``objective.use_coord_ce``, ``packages.torch``, ``data``, ``weights``, ``tokens``, ``evaluation``,
    ``base/config.json``, ``worker.threads`` and, after all others, sources such as ``coordexp/losses/criterion.py``.
    What no worker has read yet is not compared.
    """
    left, right = flat_values(a), flat_values(b)
    names = left.keys() | right.keys()
    if isinstance(a, Fingerprint) and isinstance(b, Fingerprint) and not (a.worker and b.worker):
        names = {name for name in names if not name.startswith(WORKER)}
    ordered = sorted(names, key=lambda name: (_is_source(name), name))
    return {name: (left.get(name), right.get(name)) for name in ordered if left.get(name) != right.get(name)}


def flat_values(item: Fingerprint | RunConfig) -> dict[str, JsonValue]:
    """Return all that :func:`diff` compares, by its keys."""
    if isinstance(item, RunConfig):
        return leaves(item.model_dump(mode="json"))
    hashes = {"data": item.data, "weights": item.weights, "tokens": item.tokens, "evaluation": item.evaluation}
    packages = {f"packages.{name}": version for name, version in item.packages.items()}
    worker = {f"{WORKER}{name}": value for name, value in item.worker.items()}
    return leaves(item.config) | packages | hashes | dict(item.files) | worker | dict(item.code)


def rounding_only(differences: Differences) -> Differences:
    """Return the keys among differences that change last bits only: not whether there is a GPU at all."""
    return {
        key: values
        for key, values in differences.items()
        if is_rounding(key) and (key != "cluster.gpus_per_worker" or all(values))
    }


def went_on(stored: Fingerprint, now: Fingerprint) -> Fingerprint:
    """Return the stored fingerprint of a run that goes on, with the values that its rounding keys have now."""
    config, values = dict(stored.config), dict(stored.went_on)
    for key, (before, value) in rounding_only(diff(stored, now)).items():
        config = merged(config, nested(key.split("."), value))
        values[key] = [*values.get(key, [before]), value]
    return replace(stored, config=config, went_on=values)


def outside_factor(differences: Differences, factor: Sequence[str], went_on: Iterable[str]) -> Differences:
    """Return the differences that a declared factor neither names nor explains, and that are more than rounding.

    The factor has dotted keys or sections; ``went_on`` are rounding keys that one of the runs has had other values of.
    """
    rounding = rounding_only(differences)
    declared = {key for key in differences if key not in _HASHES and within(key, tuple(factor))}
    decided = {part for key in declared if (found := key_of(key)) is not None for part in found.decides}
    deciding = {*declared, *rounding, *went_on}

    def is_explained(key: str) -> bool:
        if key in declared or key in rounding or _HASHES.get(key) in decided:
            return True
        if key == STEP_IMAGES and not declared.isdisjoint(STEP_KEYS):
            return True
        if "base" in decided and key.startswith(_SETTINGS):
            return True
        if any(key.startswith(start) and not deciding.isdisjoint(names) for start, names in _DECIDED_BY.items()):
            return True
        # Other terms have other sources, and a metric that one run lacks changes no number of the others.
        return None in differences[key] and (is_metric(key) or ("terms" in decided and _is_source(key)))

    return {key: values for key, values in differences.items() if not is_explained(key)}


def find_differences(fingerprints: Mapping[str, Fingerprint], factor: Sequence[str]) -> list[KeyDifference]:
    """Return what a declared factor neither names nor explains, run by run; seeds differ in the order of samples."""
    first_of_seed: dict[str, str] = {}
    first_with: dict[str, str] = {}
    found: list[KeyDifference] = []
    # Those whose worker has read what it computes with come first: others are compared with them.
    for name, current in sorted(fingerprints.items(), key=lambda named: not named[1].worker):
        reference = first_of_seed.setdefault(str(flat_values(current)["experiment.seed"]), name)
        if reference == name:
            reference = next(iter(first_of_seed.values()))
        changed = {*fingerprints[reference].went_on, *current.went_on}
        differing = outside_factor(diff(fingerprints[reference], current), (*factor, "experiment.seed"), changed)
        found += [KeyDifference(key, reference, a, name, b) for key, (a, b) in differing.items()]
        for path, own in current.code.items():
            # The reference may lack the source of a term; of the runs that have it, each must have the same.
            first = first_with.setdefault(path, name)
            other = fingerprints[first].code[path]
            if other != own and path not in differing:
                found.append(KeyDifference(path, first, other, name, own))
    return found


def check_comparable(fingerprints: Mapping[str, Fingerprint], factor: Sequence[str]) -> None:
    """Raise a ComparisonError with a table of the differences outside the factor, see :func:`find_differences`."""
    found = find_differences(fingerprints, factor)
    if found:
        raise ComparisonError(
            f"runs differ in more than the declared factor ({', '.join(factor)}), so they cannot be compared:\n"
            f"{differences_table(found)}\n"
            "--allow-differences shows them beside the results instead"
        )


def differences_table(differences: Sequence[KeyDifference]) -> str:
    """Return differences as lines of plain text: key, one run and its value, the other and its value."""
    shown = differences[:_MAX_SHOWN]
    rows = [
        (item.key, f"{item.run}: {shown_value(item.value)}", f"{item.other_run}: {shown_value(item.other_value)}")
        for item in shown
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"  {key:<{widths[0]}}  {a:<{widths[1]}}  {b}" for key, a, b in rows]
    more = [f"  and {len(differences) - len(shown)} more"] if len(shown) < len(differences) else []
    return "\n".join([*lines, *more])


def _is_source(key: str) -> bool:
    return key.startswith("coordexp/")


def shown_value(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 24 else f"{text[:16]}..."
