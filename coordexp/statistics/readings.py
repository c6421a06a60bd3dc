"""The four readings of an experiment's answers, and under which of them its verdict holds."""

from collections.abc import Mapping
from typing import Literal

from coordexp.metrics import BoxKind, Decoding
from coordexp.statistics.results import Comparison, PairResult
from coordexp.statistics.verdict import p_is

ReadingName = Literal["own", "expected", "argmax", "free"]
READINGS: tuple[ReadingName, ...] = ("own", "expected", "argmax", "free")
"""The headline first."""

WORDS: dict[ReadingName, str] = {
    "own": "with each group by its own reading",
    "expected": "when every group is read by expectation",
    "argmax": "when every group is read by argmax",
    "free": "under free decoding",
}
"""As they stand after a verb."""

_NUMBERS = {2: "two", 3: "three", 4: "four"}


def reads(name: ReadingName, own: BoxKind) -> tuple[Decoding, BoxKind]:
    """Return the decoding and the boxes by which a reading takes a group whose own boxes are ``own``."""
    return "free" if name == "free" else "constrained", own if name in ("own", "free") else name


def reading_sentence(readings: Mapping[ReadingName, Comparison]) -> str:
    """Return one sentence: under which readings what the verdict says of the best group is said as well.

    The verdict is that of each group's own reading. It holds under another one if every pair of the best group comes
    out the same there: the same group significantly higher, or neither.

    The comparisons are of the same groups and seeds, the own reading among them; without pairs the sentence is "".
    """

    def written(pair: PairResult) -> str:
        return f"there {pair.a} - {pair.b} = {pair.difference.value:+.4f}, {p_is(pair.p_holm)}"

    own = readings["own"]
    if not own.pairs:
        return ""
    best = max(own.groups, key=lambda group: own.value[group].value)
    decisive = [(pair.a, pair.b) for pair in own.pairs if best in (pair.a, pair.b)]
    there: list[ReadingName] = [name for name in READINGS if name in readings]
    changed: dict[ReadingName, list[PairResult]] = {
        name: [pair if pair.a == best else pair.reversed() for pair in _changed(own, readings[name], decisive)]
        for name in there
    }
    holds = [WORDS[name] for name in there if not changed[name]]
    others = [
        f"{WORDS[name]} ({'; '.join(written(pair) for pair in pairs)})" for name, pairs in changed.items() if pairs
    ]
    lacking = [WORDS[name] for name in READINGS if name not in readings]
    if others:
        sentence = f"It holds {_and(holds)}, but not {' nor '.join(others)}"
    elif not lacking:
        sentence = "It holds under all four readings"
    elif len(there) == 1:
        sentence = f"It is known {WORDS['own']} only"
    else:
        sentence = f"It holds under the {_NUMBERS[len(there)]} readings that are known, {_and(holds)}"
    return sentence + (f"; nothing is known of it {_and(lacking)}." if lacking else ".")


def _changed(own: Comparison, other: Comparison, couples: list[tuple[str, str]]) -> list[PairResult]:
    """Return the pairs that come out otherwise under another reading, as they are there."""
    before = {(pair.a, pair.b): _outcome(pair) for pair in own.pairs}
    found = {(pair.a, pair.b): pair for pair in other.pairs}
    return [found[couple] for couple in couples if _outcome(found[couple]) != before[couple]]


def _outcome(pair: PairResult) -> str | None:
    if not pair.significant:
        return None
    return pair.a if pair.difference.value > 0 else pair.b


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
