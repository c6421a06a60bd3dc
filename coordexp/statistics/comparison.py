"""All groups of an experiment on one metric: values, differences, tests, and the smallest difference they can find.

Several readings of the same runs are compared at once: files of equal bytes are matched and resampled once, and each
distinct pair of them is tested once. Legend of shapes: ``R`` resamples, ``S`` seeds.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coordexp.data.units import UnitNames, Units
from coordexp.files import sha256_of_file
from coordexp.statistics.bootstrap import (
    FilePath,
    check_groups,
    images_a_category,
    known_metric,
    numbered_units,
    read_matches,
    resampled,
)
from coordexp.statistics.intervals import Drawn, difference_total, group_total
from coordexp.statistics.permutation import holm, swap_test
from coordexp.statistics.power import detectable
from coordexp.statistics.resampling import OnProgress, check_plan, swapped_images
from coordexp.statistics.results import Comparison, PairResult

N = TypeVar("N", bound=str)
Files = Mapping[str, Mapping[int, FilePath]]
"""Group -> training seed -> detections in COCO's results format."""


def compare(
    annotations_json: FilePath,
    detections: Files,
    *,
    metric: str = "AP",
    resamples: int = 2000,
    seed: int = 0,
    image_ids: Collection[int] | None = None,
    units: UnitNames | None = None,
    on_progress: OnProgress | None = None,
) -> Comparison:
    """Compare groups of an experiment, each with one or several seeds, on the same images.

    Args:
        annotations_json: ground truth in COCO format.
        detections: group -> training seed -> detections in COCO's results format.
        metric: AP, AP50, AP75, AP_small, AP_medium or AP_large.
        resamples: bootstrap resamples, and as many draws of the swap test.
        seed: of the draws; the same seed gives the same numbers.
        image_ids: only these images; None for every image of the annotation file.
        units: which images are not independent; units are then drawn and swapped in the place of images.
        on_progress: called with the number of draws done and their total.

    Returns:
        The comparison; without pairs if there is one group.

    Raises:
        DataError: if a file or an entry is malformed, or an image id is unknown.
        ComparisonError: if there is nothing to compare, or nothing to resample.
    """
    return compare_readings(
        annotations_json,
        {"": detections},
        metric=metric,
        resamples=resamples,
        seed=seed,
        image_ids=image_ids,
        units=units,
        on_progress=on_progress,
    )[""]


def compare_readings(
    annotations_json: FilePath,
    readings: Mapping[N, Files],
    *,
    metric: str = "AP",
    resamples: int = 2000,
    swaps: int | None = None,
    seed: int = 0,
    families: Mapping[str, str] | None = None,
    image_ids: Collection[int] | None = None,
    units: UnitNames | None = None,
    on_progress: OnProgress | None = None,
) -> dict[N, Comparison]:
    """Compare the same groups as read in several ways, by name: each way for itself, as :func:`compare` does.

    ``swaps`` are the draws of each swap test, as many as ``resamples`` by default. ``families`` are by group: equal
    numbers of groups of two families are not the same seed; by default all are of one. The p-values of each reading
    are corrected for its own pairs.
    """
    for detections in readings.values():
        check_groups(detections)
    check_plan(resamples=resamples, seed=seed)
    related, which = families or {}, known_metric(metric)
    paths = sorted({Path(path) for files in readings.values() for seeds in files.values() for path in seeds.values()})
    # What is no file keeps its name, by which its reader complains of it.
    hashes = {path: sha256_of_file(path) if path.is_file() else str(path) for path in paths}
    contents = {
        name: {group: {n: hashes[Path(path)] for n, path in sorted(seeds.items())} for group, seeds in files.items()}
        for name, files in readings.items()
    }
    couples = {name: _couples(files, related) for name, files in contents.items()}
    files_of = {content: path for path, content in reversed(hashes.items())}
    matches = read_matches(annotations_json, files_of, metric=metric, image_ids=image_ids, on_progress=on_progress)
    truth = next(iter(matches.values()))
    tests = dict.fromkeys(twins for found in couples.values() for twins in found.values())

    def share(part: int) -> OnProgress | None:
        """Turn the progress of one part of the work into progress of the whole."""
        report = on_progress
        if report is None:
            return None
        return lambda done, of: report(part * of + done, (1 + len(tests)) * of)

    numbered = numbered_units(annotations_json, units, image_ids)
    drawn = resampled(matches, metric, resamples=resamples, seed=seed, units=numbered, on_progress=share(0))
    draws = _coins(truth.num_images, numbered, resamples=swaps or resamples, seed=seed)
    p_swap: dict[_Twins, float] = {}
    for part, twins in enumerate(tests, start=1):
        pairs = [(matches[a], matches[b]) for a, b in twins]
        p_swap[twins] = swap_test(pairs, which, draws, on_progress=share(part))

    compared = dict[N, Comparison]()
    for name, files in contents.items():
        runs = {group: {n: drawn[content] for n, content in own.items()} for group, own in files.items()}
        compared[name] = Comparison(
            metric=metric,
            groups=tuple(runs),
            seeds={group: tuple(own) for group, own in runs.items()},
            num_images=truth.num_images,
            resamples=resamples,
            value={group: group_total(own).estimate.of_precision() for group, own in runs.items()},
            value_by_seed={
                group: {number: group_total({number: run}).estimate.of_precision() for number, run in own.items()}
                for group, own in runs.items()
            },
            pairs=_pairs(runs, couples[name], p_swap, related),
            seed=seed,
            images_a_category=images_a_category(truth, numbered),
            num_units=None if numbered is None else numbered.num_units,
        )
    return compared


def _coins(num_images: int, units: Units | None, *, resamples: int, seed: int) -> NDArray[np.uint8]:
    """Return ``[R, N]``: 1 for the images that change places in a draw, those of a unit together."""
    if units is None:
        return swapped_images(num_images, resamples=resamples, seed=seed)
    return units.spread(swapped_images(units.num_units, resamples=resamples, seed=seed))


_Twins = tuple[tuple[str, str], ...]
"""The files of two groups by the hashes of their bytes, one pair for each seed that is compared."""


def _couples(contents: Mapping[str, Mapping[int, str]], families: Mapping[str, str]) -> dict[tuple[str, str], _Twins]:
    """Return every pair of groups with its files, those of one seed together."""
    couples: dict[tuple[str, str], _Twins] = {}
    for a, b in combinations(contents, 2):
        common = [n for n in contents[a] if families.get(a) == families.get(b) and n in contents[b]]
        # Without a common seed any pairing does for the swaps; sorted order can be reproduced.
        twins = zip(common or contents[a], common or contents[b], strict=False)
        couples[a, b] = tuple((contents[a][i], contents[b][j]) for i, j in twins)
    return couples


def _pairs(
    runs: Mapping[str, Mapping[int, Drawn]],
    couples: Mapping[tuple[str, str], _Twins],
    p_swap: Mapping[_Twins, float],
    families: Mapping[str, str],
) -> tuple[PairResult, ...]:
    pairs: list[PairResult] = []
    for (a, b), twins in couples.items():
        paired = families.get(a) == families.get(b)
        found = difference_total(runs[a], runs[b], paired=paired)
        image_std = found.image_std if math.isfinite(found.std) else 0.0
        num_units = next(iter(runs[a].values())).num_units
        pairs.append(
            PairResult(
                a=a,
                b=b,
                difference=found.estimate.of_difference(),
                p_swap=p_swap[twins],
                p_holm=1.0,  # known once there are all pairs
                image_std=image_std,
                seed_std=found.seed_std,
                detectable=detectable(image_std, found.seed_std, len(twins), num_units) or None,
                p_bootstrap=found.p,
                num_seeds=len(twins),
                paired_by_seed=paired and not runs[a].keys().isdisjoint(runs[b]),
                own_std=found.own_std,
            )
        )
    # A pair is as sure as the less sure of its two tests; then for the number of pairs.
    adjusted = holm([max(pair.p_swap, pair.p_bootstrap or 0.0) for pair in pairs])
    return tuple(replace(pair, p_holm=p) for pair, p in zip(pairs, adjusted, strict=True))
