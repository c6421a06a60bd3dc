"""How far groups lead one of them at several amounts of something, such as training images, and whether leads change.

Every file of every amount sees the same resamples of the images, so that a lead at one amount less a lead at another
has an interval of its own. Leads are paired by seed number: seed 1 of C less seed 1 of A, at each amount.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coordexp.data.units import UnitNames
from coordexp.errors import ComparisonError
from coordexp.statistics.bootstrap import FilePath, numbered_units, read_matches, resampled
from coordexp.statistics.intervals import Drawn, Total, difference_total, group_total
from coordexp.statistics.permutation import holm
from coordexp.statistics.resampling import OnProgress, check_plan
from coordexp.statistics.results import Estimate

FEWEST_SEEDS = 3
"""Of a claim: with two seeds an interval rests on a single degree of freedom."""

Runs = Mapping[int, Drawn]
"""Training seed -> AP of its detections."""


@dataclass(frozen=True)
class Lead:
    """AP of a group minus AP of the reference group, at one amount."""

    group: str
    amount: str
    difference: Estimate | None  # mean over ``seeds``; None if the two groups share no seed there
    seeds: tuple[int, ...]  # that both groups have
    p_holm: float = 1.0  # of "there is no lead", corrected for all leads


@dataclass(frozen=True)
class LeadChange:
    """The lead of a group at its last amount less its lead at its first amount."""

    group: str
    first: str  # the amount
    last: str
    difference: Estimate | None  # mean over ``seeds``; None if there are none
    seeds: tuple[int, ...]  # that both groups have at both amounts
    p_holm: float = 1.0  # of "the lead does not change", corrected for all changes

    @property
    def carries_claim(self) -> bool:
        """Whether there are enough seeds to claim anything."""
        return len(self.seeds) >= FEWEST_SEEDS

    @property
    def is_shown(self) -> bool:
        """Whether it is shown that the lead changes: by the interval, corrected for all changes, over enough seeds."""
        return self.carries_claim and self.difference is not None and self.p_holm < 0.05


@dataclass(frozen=True)
class Leads:
    """All amounts on one way of reading boxes."""

    reference: str
    ap: Mapping[str, Mapping[str, Estimate]]  # amount -> group -> mean over seeds
    ap_by_seed: Mapping[str, Mapping[str, Mapping[int, float]]]
    leads: tuple[Lead, ...]  # by amount, then group
    changes: tuple[LeadChange, ...]
    num_images: int
    resamples: int
    seed: int
    num_units: int | None = None  # that were drawn in the place of images


def compare_leads(
    annotations_json: FilePath,
    detections: Mapping[str, Mapping[str, Mapping[int, FilePath]]],
    reference: str,
    *,
    resamples: int = 2000,
    seed: int = 0,
    units: UnitNames | None = None,
    on_progress: OnProgress | None = None,
) -> Leads:
    """Compare groups with a reference group at each amount, and their leads at the largest with those at the smallest.

    Args:
        annotations_json: ground truth in COCO format, the same for all amounts.
        detections: amount, from the smallest on -> group -> training seed -> detections in COCO's results format.
        reference: the group that the others are compared with.
        resamples: draws of the bootstrap.
        seed: of the draws.
        units: which images are not independent; units are then drawn in the place of images.
        on_progress: called with the number of draws done and their total.

    Returns:
        A lead for each group that is there at an amount together with the reference, and a change for each that has
        leads at two amounts or more.

    Raises:
        DataError: if a file or an entry is malformed.
        ComparisonError: if the reference is at no amount, or there is nothing to resample.
    """
    check_plan(resamples=resamples, seed=seed)
    if not any(reference in groups for groups in detections.values()):
        raise ComparisonError(f"there is no group {reference!r} with detections to compare the others with")
    files: dict[tuple[str, str, int], FilePath] = {}
    for amount, groups in detections.items():
        for group, paths in groups.items():
            files |= {(amount, group, number): path for number, path in sorted(paths.items())}
    matches = read_matches(annotations_json, files, metric="AP", on_progress=on_progress)
    numbered = numbered_units(annotations_json, units, None)
    drawn = resampled(matches, "AP", resamples=resamples, seed=seed, units=numbered, on_progress=on_progress)
    runs: dict[str, dict[str, dict[int, Drawn]]] = {}
    for (amount, group, number), measured in drawn.items():
        runs.setdefault(amount, {}).setdefault(group, {})[number] = measured

    leads, leads_by_seed = _leads(runs, reference)
    return Leads(
        reference=reference,
        ap={
            amount: {group: group_total(seeds).estimate.of_precision() for group, seeds in groups.items()}
            for amount, groups in runs.items()
        },
        ap_by_seed={
            amount: {group: {n: run.value for n, run in seeds.items()} for group, seeds in groups.items()}
            for amount, groups in runs.items()
        },
        leads=leads,
        changes=_changes(leads_by_seed),
        num_images=next(iter(matches.values())).num_images,
        resamples=resamples,
        seed=seed,
        num_units=None if numbered is None else numbered.num_units,
    )


def _leads(
    runs: Mapping[str, Mapping[str, Runs]], reference: str
) -> tuple[tuple[Lead, ...], dict[str, dict[str, Runs]]]:
    """Return every lead, and group -> amount -> the lead of each seed with its draws."""
    leads: list[Lead] = []
    totals: list[Total | None] = []
    by_seed: dict[str, dict[str, Runs]] = {}
    for amount, groups in runs.items():
        for group, seeds in groups.items():
            if group == reference or reference not in groups:
                continue
            of_amount = _minus(seeds, groups[reference])
            by_seed.setdefault(group, {})[amount] = of_amount
            total = group_total(of_amount) if of_amount else None
            totals.append(total)
            difference = None if total is None else total.estimate.of_difference()
            leads.append(Lead(group, amount, difference, tuple(of_amount)))
    corrected = _corrected(totals)
    return tuple(replace(lead, p_holm=p) for lead, p in zip(leads, corrected, strict=True)), by_seed


def _changes(leads_by_seed: Mapping[str, Mapping[str, Runs]]) -> tuple[LeadChange, ...]:
    """Return how the lead of each group changes from its first amount to its last; a group at one amount has none."""
    changes: list[LeadChange] = []
    totals: list[Total | None] = []
    for group, by_amount in leads_by_seed.items():
        if len(by_amount) < 2:
            continue
        (first, *_, last) = by_amount
        common = tuple(number for number in by_amount[last] if number in by_amount[first])
        total = difference_total(by_amount[last], by_amount[first]) if common else None
        totals.append(total)
        difference = None if total is None else total.estimate.within(-2.0, 2.0)
        changes.append(LeadChange(group, first, last, difference, common))
    corrected = _corrected(totals)
    return tuple(replace(change, p_holm=p) for change, p in zip(changes, corrected, strict=True))


def _minus(a: Runs, b: Runs) -> dict[int, Drawn]:
    """Return the difference of two groups for each seed that both have."""
    return {
        number: Drawn(run.value - b[number].value, run.draws - b[number].draws, run.num_units)
        for number, run in a.items()
        if number in b
    }


def _corrected(totals: Sequence[Total | None]) -> list[float]:
    """Return p-values after Holm's correction; 1 where nothing is known."""
    return list(holm([1.0 if total is None else total.p for total in totals]))
