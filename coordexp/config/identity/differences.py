"""Whether runs differ in the declared factor only.

Four kinds of differences are compared: keys of the configuration, hashes of what the keys lead to (data, the base's
weights and each of its files, token stream, evaluation), the code: versions of packages and hashes of our sources; and
what each run's worker found itself to compute with (``worker``: threads, precision, switches, versions).
A hash may differ only where a declared difference explains it: with the factor ``data.structure`` the token
streams differ, with the factor ``objective`` they must not. A seed explains another order
of samples, so every pair of runs with one seed must agree in it; it explains no other base. Code may never differ; but
groups that compute other loss terms have other sources, each of which one of the two runs lacks.

What changes rounding only may differ, since a run may go on with more CPUs or fewer workers after others have finished;
groups cannot choose it, and whoever compares says so (:func:`rounding_only`).
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

_MAX_SHOWN = 30  # an older checkout differs in every source, for every run


@dataclass(frozen=True)
class KeyDifference:
    """One key in which a run differs from the run it is compared with.

    Attributes:
        key: dotted key, package or hash, as of :func:`diff`.
        run: the run compared with.
        value: its value; None where it has none.
        other_run: the run that differs.
        other_value: its value.
    """

    key: str
    run: str
    value: JsonValue
    other_run: str
    other_value: JsonValue

    @property
    def shown(self) -> str:
        """The first value, cut to a table's width."""
        return _shown(self.value)

    @property
    def other_shown(self) -> str:
        """The other value, cut to a table's width."""
        return _shown(self.other_value)


# Which parts of a run each hash is of; a declared key that decides one of them explains that the hash differs.
_HASHES: dict[str, frozenset[Part]] = {
    "data": frozenset(["data"]),
    "weights": frozenset(["base"]),
    "tokens": frozenset(["tokens"]),
    "evaluation": frozenset(["evaluation"]),
}
_BASE, _DEEPSPEED, WORKER = "base/", "deepspeed/", "worker."
# Which keys explain what a worker finds.
_DECIDED_BY: dict[str, tuple[str, ...]] = {
    _DEEPSPEED: ("cluster.strategy",),
    f"{WORKER}precision.": ("training.precision", "cluster.strategy"),
    f"{WORKER}threads": ("training.num_threads", "cluster.cpus_per_worker"),
    f"{WORKER}deterministic": ("training.deterministic",),
    f"{WORKER}cudnn.": ("training.deterministic",),
    f"{WORKER}environment.CUBLAS_WORKSPACE_CONFIG": ("training.deterministic",),
}
_SETTINGS = (_BASE, f"{WORKER}model.")
_GPUS = "cluster.gpus_per_worker"


def diff(a: Fingerprint | RunConfig, b: Fingerprint | RunConfig) -> Differences:
    """Return every difference as ``dotted key -> (value in a, value in b)``; None where one has no such key.

    Of configurations all keys are compared, also those that change no number. Of fingerprints the keys are
    ``objective.use_coord_ce``, ``packages.torch``, ``data``, ``weights``, ``tokens``, ``evaluation``,
    ``base/config.json``, ``worker.threads`` and, after all others, sources such as ``coordexp/losses/criterion.py``.
    What no worker has read yet is not compared.
    """
    left, right = flat_values(a), flat_values(b)
    if isinstance(a, Fingerprint) and isinstance(b, Fingerprint) and not (a.worker and b.worker):
        left, right = _without(left, WORKER), _without(right, WORKER)
    keys = sorted(left.keys() | right.keys(), key=lambda key: (_is_source(key), key))
    return {key: (left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)}


def rounding_only(differences: Differences) -> Differences:
    """Return the keys among differences that change last bits only: not whether there is a GPU at all."""
    return {key: values for key, values in differences.items() if is_rounding(key) and (key != _GPUS or all(values))}


def went_on(stored: Fingerprint, now: Fingerprint) -> Fingerprint:
    """Return the stored fingerprint of a run that goes on, with the values that its rounding keys have now."""
    config, values = dict(stored.config), dict(stored.went_on)
    for key, (before, value) in rounding_only(diff(stored, now)).items():
        config = merged(config, nested(key.split("."), value))
        values[key] = [*values.get(key, [before]), value]
    return replace(stored, config=config, went_on=values)


def outside_factor(differences: Differences, factor: Sequence[str], went_on: Iterable[str] = ()) -> Differences:
    """Return the differences that a declared factor neither names nor explains, and that are more than rounding.

    Args:
        differences: what :func:`diff` returned.
        factor: dotted keys or sections that may differ.
        went_on: rounding keys that one of the two runs has had other values of.
    """
    rounding = rounding_only(differences)
    declared = [key for key in differences if key not in _HASHES and within(key, tuple(factor))]
    decided = {part for key in declared if (found := key_of(key)) is not None for part in found.decides}
    explained = {name for name, parts in _HASHES.items() if not parts.isdisjoint(decided)}
    if "base" in decided:
        explained |= {key for key in differences if key.startswith(_SETTINGS)}
    if not set(STEP_KEYS).isdisjoint(declared):
        explained.add(STEP_IMAGES)
    deciding = {*declared, *rounding, *went_on}
    explained |= {
        key
        for key in differences
        for start, names in _DECIDED_BY.items()
        if key.startswith(start) and not deciding.isdisjoint(names)
    }
    explained |= {key for key, values in differences.items() if is_metric(key) and None in values}
    if "terms" in decided:
        explained |= {key for key, values in differences.items() if _is_source(key) and None in values}
    explained |= {*declared, *rounding}
    return {key: values for key, values in differences.items() if key not in explained}


def find_differences(fingerprints: Mapping[str, Fingerprint], factor: Sequence[str]) -> list[KeyDifference]:
    """Return what a declared factor neither names nor explains, run by run.

    Runs of one seed must agree in everything else. Runs of different seeds are averaged, so they
    must agree too, but in what a seed decides: the order of samples.

    Args:
        fingerprints: of each run, by its name.
        factor: dotted keys or sections that may differ.
    """
    first_of_seed: dict[str, str] = {}
    first_with: dict[str, str] = {}
    first_read = next((name for name, item in fingerprints.items() if item.worker), None)
    found: list[KeyDifference] = []
    for name, current in fingerprints.items():
        reference = first_of_seed.setdefault(_seed(current), name)
        if reference == name:
            reference = next(iter(first_of_seed.values()))
        outside = _outside(fingerprints[reference], current, factor)
        found += [KeyDifference(key, reference, a, name, b) for key, (a, b) in outside.items()]
        # The reference may be one whose worker has not read anything yet.
        if first_read is not None and not fingerprints[reference].worker:
            unread = _outside(fingerprints[first_read], current, factor)
            found += [
                KeyDifference(key, first_read, a, name, b) for key, (a, b) in unread.items() if key.startswith(WORKER)
            ]
        # The reference may lack the source of a term; of the runs that have it, each must have the same.
        for path, own in current.code.items():
            first = first_with.setdefault(path, name)
            other = fingerprints[first].code[path]
            if other != own and path not in outside:
                found.append(KeyDifference(path, first, other, name, own))
    return found


def _outside(a: Fingerprint, b: Fingerprint, factor: Sequence[str]) -> Differences:
    return outside_factor(diff(a, b), (*factor, "experiment.seed"), {*a.went_on, *b.went_on})


def check_comparable(fingerprints: Mapping[str, Fingerprint], factor: Sequence[str]) -> None:
    """Refuse a comparison of runs that differ outside the factor, see :func:`find_differences`.

    Raises:
        ComparisonError: with a table of all differences outside the factor.
    """
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
    rows = [(item.key, f"{item.run}: {item.shown}", f"{item.other_run}: {item.other_shown}") for item in shown]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"  {key:<{widths[0]}}  {a:<{widths[1]}}  {b}" for key, a, b in rows]
    more = [f"  and {len(differences) - len(shown)} more"] if len(shown) < len(differences) else []
    return "\n".join([*lines, *more])


def flat_values(item: Fingerprint | RunConfig) -> dict[str, JsonValue]:
    """Return all that :func:`diff` compares, by its keys."""
    if isinstance(item, RunConfig):
        return leaves(item.model_dump(mode="json"))
    hashes: dict[str, JsonValue] = {
        "data": item.data,
        "weights": item.weights,
        "tokens": item.tokens,
        "evaluation": item.evaluation,
    }
    packages = {f"packages.{name}": version for name, version in item.packages.items()}
    worker = {f"{WORKER}{name}": value for name, value in item.worker.items()}
    return leaves(item.config) | packages | hashes | dict(item.files) | worker | dict(item.code)


def _without(values: Mapping[str, JsonValue], start: str) -> dict[str, JsonValue]:
    return {key: value for key, value in values.items() if not key.startswith(start)}


def _is_source(key: str) -> bool:
    return key.startswith("coordexp/")


def _seed(item: Fingerprint) -> str:
    return str(flat_values(item)["experiment.seed"])


def _shown(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 24 else f"{text[:16]}..."
