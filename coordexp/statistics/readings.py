"""The four readings of an experiment's answers, and under which of them its verdict holds."""

from collections.abc import Mapping
from typing import Literal

from coordexp.metrics import BoxKind, Decoding
from coordexp.statistics.results import Comparison, PairResult
from coordexp.statistics.verdict import p_is

ReadingName = Literal["own", "expected", "argmax", "free"]
READINGS: tuple[ReadingName, ...] = ("own", "expected", "argmax", "free")
"""The headline first: each group by its own reading."""

WORDS: dict[ReadingName, str] = {
    "own": "with each group by its own reading",
    "expected": "when every group is read by expectation",
    "argmax": "when every group is read by argmax",
    "free": "under free decoding",
}
"""As they stand after a verb."""

_NUMBERS = {2: "two", 3: "three", 4: "four"}


def reads(name: ReadingName, own_boxes: BoxKind) -> tuple[Decoding, BoxKind]:
    """Return the decoding and the kind of boxes by which a reading takes a group.

    Args:
        name: of the reading.
        own_boxes: the kind of boxes of the group's own reading.
    """
    if name == "free":
        return "free", own_boxes
    return "constrained", own_boxes if name == "own" else name


def reading_sentence(readings: Mapping[ReadingName, Comparison]) -> str:
    """Return one sentence: under which readings the verdict on the best group holds.

    The verdict is that of each group's own reading. It holds under another reading if every pair of the best group
    comes out the same there: the same group significantly higher, or neither.

    Args:
        readings: comparisons of the same groups and seeds, the own reading among them.

    Returns:
        The sentence; "" if there are no pairs.
    """
    own_reading = readings["own"]
    if not own_reading.pairs:
        return ""
    best = max(own_reading.groups, key=lambda group: own_reading.value[group].value)
    compared: list[ReadingName] = [name for name in READINGS if name in readings]
    holding: list[str] = []
    contrary: list[str] = []
    for name in compared:
        changed_pairs = _changed_pairs(own_reading, readings[name], best)
        if not changed_pairs:
            holding.append(WORDS[name])
            continue
        differences = [
            f"there {pair.a} - {pair.b} = {pair.difference.value:+.4f}, {p_is(pair.p_holm)}" for pair in changed_pairs
        ]
        contrary.append(f"{WORDS[name]} ({'; '.join(differences)})")

    missing = [WORDS[name] for name in READINGS if name not in readings]
    if contrary:
        sentence = f"It holds {_and(holding)}, but not {' nor '.join(contrary)}"
    elif not missing:
        sentence = "It holds under all four readings"
    elif len(compared) == 1:
        sentence = f"It is known {WORDS['own']} only"
    else:
        sentence = f"It holds under the {_NUMBERS[len(compared)]} readings that are known, {_and(holding)}"
    if missing:
        sentence += f"; nothing is known of it {_and(missing)}"
    return f"{sentence}."


def _changed_pairs(own_reading: Comparison, reading: Comparison, best: str) -> list[PairResult]:
    """Return the pairs of the best group that come out otherwise under a reading, as they are there, it first."""
    own_outcomes = {(pair.a, pair.b): _outcome(pair) for pair in own_reading.pairs}
    changed: list[PairResult] = []
    for pair in reading.pairs:
        is_of_best = best in (pair.a, pair.b)
        if is_of_best and _outcome(pair) != own_outcomes[pair.a, pair.b]:
            changed.append(pair if pair.a == best else pair.reversed())
    return changed


def _outcome(pair: PairResult) -> str | None:
    """Return the group that is significantly higher, or None."""
    if not pair.significant:
        return None
    return pair.a if pair.difference.value > 0 else pair.b


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
