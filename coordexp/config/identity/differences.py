"""Whether runs differ in the declared factor only.

Three kinds of differences are compared: keys of the configuration, hashes of what the keys lead to (data,
initial weights, token stream, evaluation), and the code: versions of packages and hashes of our sources.
A hash may differ only where a declared difference explains it: with the factor ``data.structure`` the token
streams differ, with the factor ``objective`` they must not. A seed explains other weights and another order
of samples, so every pair of runs with one seed must agree in them. Code may never differ; but groups that
compute other loss terms have other sources, each of which one of the two runs lacks.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordexp.config.identity.code import is_metric
from coordexp.config.identity.fingerprint import Fingerprint
from coordexp.config.keys import key_of
from coordexp.config.schema import ExperimentConfig
from coordexp.config.schema.fields import Part
from coordexp.config.trees import leaves, within
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
    "weights": frozenset(["base", "weights"]),
    "tokens": frozenset(["tokens"]),
    "evaluation": frozenset(["evaluation"]),
}


def diff(a: Fingerprint | ExperimentConfig, b: Fingerprint | ExperimentConfig) -> Differences:
    """Return every difference as ``dotted key -> (value in a, value in b)``; None where one has no such key.

    Of configurations all keys are compared, also those that change no number. Of fingerprints the keys are
    ``objective.use_coord_ce``, ``packages.torch``, ``data``, ``weights``, ``tokens``, ``evaluation`` and, after all
    others, sources such as ``coordexp/losses/criterion.py``.
    """
    left, right = flat_values(a), flat_values(b)
    keys = sorted(left.keys() | right.keys(), key=lambda key: (_is_source(key), key))
    return {key: (left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)}


def outside_factor(differences: Differences, factor: Sequence[str]) -> Differences:
    """Return the differences that a declared factor neither names nor explains.

    Args:
        differences: what :func:`diff` returned.
        factor: dotted keys or sections that may differ.
    """
    declared = [key for key in differences if key not in _HASHES and within(key, tuple(factor))]
    decided = {part for key in declared if (found := key_of(key)) is not None for part in found.decides}
    explained = {name for name, parts in _HASHES.items() if not parts.isdisjoint(decided)}
    explained |= {key for key, values in differences.items() if is_metric(key) and None in values}
    if "terms" in decided:
        explained |= {key for key, values in differences.items() if _is_source(key) and None in values}
    return {key: values for key, values in differences.items() if key not in declared and key not in explained}


def find_differences(fingerprints: Mapping[str, Fingerprint], factor: Sequence[str]) -> list[KeyDifference]:
    """Return what a declared factor neither names nor explains, run by run.

    Runs of one seed must agree in everything else. Runs of different seeds are averaged, so they
    must agree too, but in what a seed decides: the initial weights and the order of samples.

    Args:
        fingerprints: of each run, by its name.
        factor: dotted keys or sections that may differ.
    """
    first_of_seed: dict[str, str] = {}
    first_with: dict[str, str] = {}
    found: list[KeyDifference] = []
    for name, current in fingerprints.items():
        reference = first_of_seed.setdefault(_seed(current), name)
        if reference == name:
            reference = next(iter(first_of_seed.values()))
        outside = outside_factor(diff(fingerprints[reference], current), (*factor, "experiment.seed"))
        found += [KeyDifference(key, reference, a, name, b) for key, (a, b) in outside.items()]
        # The reference may lack the source of a term; of the runs that have it, each must have the same.
        for path, own in current.code.items():
            first = first_with.setdefault(path, name)
            other = fingerprints[first].code[path]
            if other != own and path not in outside:
                found.append(KeyDifference(path, first, other, name, own))
    return found


def check_comparable(fingerprints: Mapping[str, Fingerprint], factor: Sequence[str]) -> None:
    """Refuse a comparison of runs that differ outside the factor, see :func:`find_differences`.

    Raises:
        ComparisonError: with a table of all differences outside the factor.
    """
    found = find_differences(fingerprints, factor)
    if found:
        raise ComparisonError(
            f"runs differ in more than the declared factor ({', '.join(factor)}), so they cannot be compared:\n"
            f"{differences_table(found)}\n--allow-differences shows them beside the results instead"
        )


def differences_table(differences: Sequence[KeyDifference]) -> str:
    """Return differences as lines of plain text: key, one run and its value, the other and its value."""
    shown = differences[:_MAX_SHOWN]
    rows = [(item.key, f"{item.run}: {item.shown}", f"{item.other_run}: {item.other_shown}") for item in shown]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"  {key:<{widths[0]}}  {a:<{widths[1]}}  {b}" for key, a, b in rows]
    more = [f"  and {len(differences) - len(shown)} more"] if len(shown) < len(differences) else []
    return "\n".join([*lines, *more])


def flat_values(item: Fingerprint | ExperimentConfig) -> dict[str, JsonValue]:
    """Return all that :func:`diff` compares, by its keys."""
    if isinstance(item, ExperimentConfig):
        return leaves(item.model_dump(mode="json"))
    hashes: dict[str, JsonValue] = {
        "data": item.data,
        "weights": item.weights,
        "tokens": item.tokens,
        "evaluation": item.evaluation,
    }
    packages = {f"packages.{name}": version for name, version in item.packages.items()}
    return leaves(item.config) | packages | hashes | dict(item.code)


def _is_source(key: str) -> bool:
    return key.startswith("coordexp/")


def _seed(item: Fingerprint) -> str:
    return str(flat_values(item)["experiment.seed"])


def _shown(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 24 else f"{text[:16]}..."
