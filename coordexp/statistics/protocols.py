"""Whether groups come out in the same order when the same detections are measured as published tables measure them.

Every protocol gives a value and an order of the groups. A test is made only where a pair that differs as scored stands
the other way round: a paired bootstrap, on the draws of the comparison, corrected for the number of pairs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from coordexp.data.units import UnitNames, Units
from coordexp.detection.boxes import Bools
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import GroundTruth, read_ground_truth
from coordexp.detection.matching.matches import Weights
from coordexp.detection.precision.average_precision import unit_weights
from coordexp.detection.protocols import CUT, PROTOCOLS, Protocol, Written
from coordexp.statistics.bootstrap import FilePath, numbered_units
from coordexp.statistics.intervals import ALPHA, Drawn, difference_total
from coordexp.statistics.resampling import OnProgress, blocks_of, image_weights
from coordexp.statistics.results import Comparison, Estimate, PairResult
from coordexp.statistics.verdict import has_learned, p_is

Logged = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Protocol -> group -> training seed -> what its evaluation has logged."""

BeforeRepeat = Callable[[str, int], Bools | None]
"""Which detections of a group and seed its answers hold if they are cut at their first repeat; None if unknown."""


@dataclass(frozen=True)
class Turned:
    """A pair that is significantly the other way round under a protocol: ``a - b`` is above 0 there."""

    protocol: str
    a: str
    b: str
    difference: Estimate
    p: float  # corrected for the number of pairs


@dataclass(frozen=True)
class Protocols:
    """What each protocol gives, and where it says the contrary of the comparison as scored."""

    values: Mapping[str, Mapping[str, float | None]]  # protocol -> group -> mean over seeds; None where not defined
    turned: tuple[Turned, ...] = ()

    def turned_by(self, protocol: str) -> list[Turned]:
        return [turned for turned in self.turned if turned.protocol == protocol]

    def ranking(self, protocol: str) -> list[str]:
        """Return the groups for which a protocol is defined, the best first."""
        known = {group: value for group, value in self.values[protocol].items() if value is not None}
        return sorted(known, key=lambda group: -known[group])


def compare_protocols(
    annotations_json: FilePath,
    written: Mapping[str, Mapping[int, FilePath]],
    comparison: Comparison,
    *,
    logged: Logged,
    before_repeat: BeforeRepeat = lambda group, number: None,
    families: Mapping[str, str] | None = None,
    resamples: int = 500,
    seed: int = 0,
    units: UnitNames | None = None,
    on_progress: OnProgress | None = None,
) -> Protocols:
    """Measure detections under every protocol, and test what contradicts a comparison of them.

    Args:
        annotations_json: ground truth in COCO format.
        written: group -> training seed -> detections in the order in which they were written.
        comparison: of the same groups and seeds, as scored.
        logged: values that evaluations have logged, which are not measured again.
        before_repeat: asked only where answers that are cut have to be tested.
        families: as of :func:`coordexp.statistics.comparison.compare_readings`.
        resamples: draws of a test.
        seed: of the draws.
        units: which images are not independent.
        on_progress: called with the number of files measured and their total.
    """
    runs = _Runs(read_ground_truth(Path(annotations_json)), written, before_repeat)
    values: dict[str, dict[str, dict[int, float | None]]] = {
        protocol.name: {group: dict(logged.get(protocol.name, {}).get(group, {})) for group in written}
        for protocol in PROTOCOLS
    }
    keys = [(group, number) for group, seeds in written.items() for number in sorted(seeds)]
    for done, (group, number) in enumerate(keys):
        of_run = runs.read(group, number)
        for protocol in PROTOCOLS:
            if not protocol.is_logged:
                values[protocol.name][group][number] = protocol.value(of_run)
        if on_progress is not None:
            on_progress(done + 1, len(keys))
    means = {
        name: {group: _mean(by_seed, len(written[group])) for group, by_seed in groups.items()}
        for name, groups in values.items()
    }
    contradicted = {protocol: _contradicted(comparison, means[protocol.name]) for protocol in PROTOCOLS}
    if not any(contradicted.values()):
        return Protocols(means)
    numbered = numbered_units(annotations_json, units, None) or Units.single(len(runs.truth.sizes_px))
    draws = numbered.spread(image_weights(numbered.num_units, resamples=resamples, seed=seed))
    weights = np.vstack([unit_weights(len(runs.truth.sizes_px)), draws])  # the first row is the images as they are
    num_units = numbered.num_units if numbered.has_several else None
    turned: list[Turned] = []
    for protocol, pairs in contradicted.items():
        turned += _turned_round(
            protocol,
            pairs,
            runs,
            weights,
            num_units=num_units,
            families=families or {},
            num_pairs=len(comparison.pairs),
        )
    return Protocols(means, tuple(turned))


@dataclass(frozen=True)
class _Runs:
    """The files to be measured."""

    truth: GroundTruth
    written: Mapping[str, Mapping[int, FilePath]]
    before_repeat: BeforeRepeat

    def read(self, group: str, number: int, *, is_cut: bool = False) -> Written:
        detections = read_detections(Path(self.written[group][number]), self.truth)
        rows = self.before_repeat(group, number) if is_cut else None
        # What is not of these detections says nothing of them.
        return Written(self.truth, detections, rows if rows is not None and len(rows) == len(detections) else None)

    def drawn(self, protocol: Protocol, group: str, weights: Weights, num_units: int | None) -> dict[int, Drawn]:
        """Return what a protocol gives for the seeds of a group on resamples ``[1 + R, N]``, the first row as it is."""
        by_seed: dict[int, Drawn] = {}
        for number in sorted(self.written[group]):
            of_run = self.read(group, number, is_cut=protocol.name == CUT)
            parts = [protocol.values(of_run, weights[block]) for block in blocks_of(len(weights), None)]
            values = np.concatenate(parts)
            by_seed[number] = Drawn(float(values[0]), values[1:], num_units)
        return by_seed


def _turned_round(
    protocol: Protocol,
    pairs: Sequence[PairResult],
    runs: _Runs,
    weights: Weights,
    *,
    num_units: int | None,
    families: Mapping[str, str],
    num_pairs: int,
) -> list[Turned]:
    """Return the pairs that a protocol significantly turns round, of those that stand the other way round under it."""
    turned: list[Turned] = []
    drawn: dict[str, dict[int, Drawn]] = {}  # of each group once: with twelve groups it may stand in eleven pairs
    for pair in pairs:
        for group in (pair.a, pair.b):
            if group not in drawn:
                drawn[group] = runs.drawn(protocol, group, weights, num_units)
        paired = families.get(pair.a) == families.get(pair.b)
        total = difference_total(drawn[pair.a], drawn[pair.b], paired=paired)
        p = min(1.0, total.p * num_pairs)
        if p < ALPHA and total.value > 0:
            turned.append(Turned(protocol.name, pair.a, pair.b, total.estimate.of_difference(), p))
    return turned


def _mean(runs: Mapping[int, float | None], num_seeds: int) -> float | None:
    """Return the mean over seeds, if all of them have a value."""
    known = [value for value in runs.values() if value is not None]
    return fmean(known) if len(known) == num_seeds else None


def _contradicted(comparison: Comparison, values: Mapping[str, float | None]) -> list[PairResult]:
    """Return the pairs that differ as scored and stand the other way round, the group that is better there first."""
    contradicted: list[PairResult] = []
    for pair in comparison.pairs:
        better = pair if pair.difference.value > 0 else pair.reversed()
        above, below = values.get(better.a), values.get(better.b)
        if not has_learned(comparison, pair.a, pair.b):
            continue
        if pair.significant and above is not None and below is not None and above < below:
            contradicted.append(better.reversed())
    return contradicted


def contrary_sentences(protocols: Protocols) -> list[str]:
    """Return a sentence for each pair that a protocol significantly turns round; none where none does."""
    heads = {protocol.name: protocol.head for protocol in PROTOCOLS}
    sentences: list[str] = []
    for turned in protocols.turned:
        low, high = turned.difference.low or 0.0, turned.difference.high or 0.0
        sentences.append(
            f"Under another protocol this is the other way round: by {heads[turned.protocol]}, {turned.a} is "
            f"{turned.difference.value:.4f} (95 % interval {low:.4f} to {high:.4f}, {p_is(turned.p)}) above {turned.b}."
        )
    return sentences
