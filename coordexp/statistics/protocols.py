"""Whether groups come out in the same order when the same detections are measured as published tables measure them.

Every protocol gives a value and an order of the groups. Most pairs need no test: one is made only if a pair differs
significantly as scored and stands the other way round under the protocol. The test is a paired bootstrap on the draws
of the comparison, corrected for the number of pairs.

Legend of shapes: ``R`` resamples, ``N`` images, ``D`` detections.
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
"""Group, training seed -> ``[D]`` whether a detection stands before the first repeat of its answer; None if unknown."""


@dataclass(frozen=True)
class Turned:
    """A pair that is significantly the other way round under a protocol: ``a - b`` is above 0 there.

    ``p`` is corrected for the number of pairs.
    """

    protocol: str
    a: str
    b: str
    difference: Estimate
    p: float


@dataclass(frozen=True)
class Protocols:
    """What each protocol gives, and where it says the contrary of the comparison as scored.

    Attributes:
        values: protocol -> group -> mean over seeds; None if the protocol is not defined for the group.
        turned: the pairs that a protocol turns round.
    """

    values: Mapping[str, Mapping[str, float | None]]
    turned: tuple[Turned, ...] = ()

    def turned_by(self, protocol: str) -> list[Turned]:
        return [turned for turned in self.turned if turned.protocol == protocol]

    def ranking(self, protocol: str) -> list[str]:
        """Return the groups for which a protocol is defined, the best first."""
        defined = {group: value for group, value in self.values[protocol].items() if value is not None}
        return sorted(defined, key=lambda group: -defined[group])


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

    Raises:
        DataError: if a file or an entry is malformed.
    """
    runs = _Runs(read_ground_truth(Path(annotations_json)), written, before_repeat)
    means = _means(runs, logged, on_progress)
    contradicted = {protocol: _contradicted(comparison, means[protocol.name]) for protocol in PROTOCOLS}
    if not any(contradicted.values()):
        return Protocols(means)

    num_images = len(runs.truth.sizes_px)
    drawn_units = numbered_units(annotations_json, units, None) or Units.single(num_images)
    draws = drawn_units.spread(image_weights(drawn_units.num_units, resamples=resamples, seed=seed))
    weights = np.vstack([unit_weights(num_images), draws])  # The first row is the images as they are.
    turned: list[Turned] = []
    for protocol, pairs in contradicted.items():
        turned += _turned_round(
            protocol,
            pairs,
            runs,
            weights,
            num_units=drawn_units.num_units if drawn_units.has_several else None,
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

    def read(self, group: str, number: int, *, needs_repeats: bool = False) -> Written:
        """Read the file of a group and training seed; ``needs_repeats``: ask which detections repeat earlier ones."""
        detections = read_detections(Path(self.written[group][number]), self.truth)
        before_repeat = self.before_repeat(group, number) if needs_repeats else None
        if before_repeat is not None and len(before_repeat) != len(detections):
            before_repeat = None  # It is of another file of detections, and says nothing of this one.
        return Written(self.truth, detections, before_repeat)

    def drawn(self, protocol: Protocol, group: str, weights: Weights, num_units: int | None) -> dict[int, Drawn]:
        """Measure the files of a group under a protocol on resampled images.

        Args:
            protocol: how to measure.
            group: whose files.
            weights: ``[1 + R, N]`` copies of each image, the first row the images as they are.
            num_units: as of :class:`Drawn`.

        Returns:
            Training seed -> what was measured.
        """
        drawn: dict[int, Drawn] = {}
        for number in sorted(self.written[group]):
            written = self.read(group, number, needs_repeats=protocol.name == CUT)
            values = np.concatenate(
                [protocol.values(written, weights[block]) for block in blocks_of(len(weights), None)]
            )
            drawn[number] = Drawn(float(values[0]), values[1:], num_units)
        return drawn


def _means(runs: _Runs, logged: Logged, on_progress: OnProgress | None) -> dict[str, dict[str, float | None]]:
    """Return protocol -> group -> mean over seeds: of values that are logged, or else of values measured now."""
    values: dict[str, dict[str, dict[int, float | None]]] = {}
    for protocol in PROTOCOLS:
        logged_of_groups = logged.get(protocol.name, {})
        values[protocol.name] = {group: dict(logged_of_groups.get(group, {})) for group in runs.written}

    keys = [(group, number) for group, seeds in runs.written.items() for number in sorted(seeds)]
    for num_done, (group, number) in enumerate(keys, start=1):
        written = runs.read(group, number)
        for protocol in PROTOCOLS:
            if not protocol.is_logged:
                values[protocol.name][group][number] = protocol.value(written)
        if on_progress is not None:
            on_progress(num_done, len(keys))
    return {
        name: {group: _mean(by_seed, len(runs.written[group])) for group, by_seed in groups.items()}
        for name, groups in values.items()
    }


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
    """Return the pairs that a protocol significantly turns round.

    Args:
        protocol: how to measure.
        pairs: those that stand the other way round under the protocol.
        runs: the files.
        weights: ``[1 + R, N]`` copies of each image, the first row the images as they are.
        num_units: as of :class:`Drawn`.
        families: group -> family; equal numbers of groups of two families are not the same training seed.
        num_pairs: for which p is corrected.
    """
    turned: list[Turned] = []
    drawn: dict[str, dict[int, Drawn]] = {}  # Each group is drawn once: of twelve groups, one may be in eleven pairs.
    for pair in pairs:
        for group in (pair.a, pair.b):
            if group not in drawn:
                drawn[group] = runs.drawn(protocol, group, weights, num_units)
        is_one_family = families.get(pair.a) == families.get(pair.b)
        total = difference_total(drawn[pair.a], drawn[pair.b], paired=is_one_family)
        p = min(1.0, total.p * num_pairs)
        if p < ALPHA and total.value > 0:
            turned.append(Turned(protocol.name, pair.a, pair.b, total.estimate.of_difference(), p))
    return turned


def _mean(runs: Mapping[int, float | None], num_seeds: int) -> float | None:
    """Return the mean over seeds; None unless all of them have a value."""
    defined = [value for value in runs.values() if value is not None]
    return fmean(defined) if len(defined) == num_seeds else None


def _contradicted(comparison: Comparison, values: Mapping[str, float | None]) -> list[PairResult]:
    """Return the pairs that differ significantly as scored and stand the other way round under a protocol.

    Args:
        comparison: as scored.
        values: group -> value under the protocol.

    Returns:
        The pairs, the group that is better under the protocol first.
    """
    contradicted: list[PairResult] = []
    for pair in comparison.pairs:
        if not pair.significant or not has_learned(comparison, pair.a, pair.b):
            continue
        better_first = pair if pair.difference.value > 0 else pair.reversed()
        value_of_better = values.get(better_first.a)
        value_of_other = values.get(better_first.b)
        if value_of_better is not None and value_of_other is not None and value_of_better < value_of_other:
            contradicted.append(better_first.reversed())
    return contradicted


def contrary_sentences(protocols: Protocols) -> list[str]:
    """Return a sentence for each pair that a protocol significantly turns round."""
    heads = {protocol.name: protocol.head for protocol in PROTOCOLS}
    sentences: list[str] = []
    for turned in protocols.turned:
        low = turned.difference.low or 0.0
        high = turned.difference.high or 0.0
        sentences.append(
            f"Under another protocol this is the other way round: by {heads[turned.protocol]}, {turned.a} is "
            f"{turned.difference.value:.4f} (95 % interval {low:.4f} to {high:.4f}, {p_is(turned.p)}) above {turned.b}."
        )
    return sentences
