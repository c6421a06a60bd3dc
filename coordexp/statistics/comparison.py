"""All groups of an experiment on one metric: values, differences, tests, and the smallest difference they can find.

Several readings of the same runs are compared at once. Groups often share files between readings, so files of equal
bytes are matched and resampled once, and each distinct pair of them is tested once:

    readings -> group -> seed -> path -> hash of its bytes -+-> matches -> draws -+-> a Comparison for each reading
                                                            +-> swap tests -------+

Legend of shapes: ``R`` resamples, ``N`` images, ``S`` seeds.
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
from coordexp.statistics.results import Comparison, Estimate, PairResult

N = TypeVar("N", bound=str)
Files = Mapping[str, Mapping[int, FilePath]]
"""Group -> training seed -> detections in COCO's results format."""

Hashes = Mapping[str, Mapping[int, str]]
"""Group -> training seed -> hash of the bytes of its file."""

FilePairs = tuple[tuple[str, str], ...]
"""The files of two groups by their hashes, one pair for each seed that is compared."""


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
    """Compare the same groups as read in several ways: each way for itself, as :func:`compare` does.

    Args:
        annotations_json: ground truth in COCO format.
        readings: name of the reading -> its files.
        metric: AP, AP50, AP75, AP_small, AP_medium or AP_large.
        resamples: bootstrap resamples.
        swaps: draws of each swap test; as many as ``resamples`` by default.
        seed: of the draws; the same seed gives the same numbers.
        families: group -> family. Equal numbers of groups of two families are not the same training seed. By default
            all groups are of one family.
        image_ids: only these images; None for every image of the annotation file.
        units: which images are not independent; units are then drawn and swapped in the place of images.
        on_progress: called with the number of draws done and their total.

    Returns:
        A comparison for each reading; its p-values are corrected for its own pairs.

    Raises:
        DataError: if a file or an entry is malformed, or an image id is unknown.
        ComparisonError: if there is nothing to compare, or nothing to resample.
    """
    for files in readings.values():
        check_groups(files)
    check_plan(resamples=resamples, seed=seed)
    family_of_group = families or {}
    hashes, path_of_hash = _hashes_of(readings)
    file_pairs = {name: _file_pairs(hashes_of_groups, family_of_group) for name, hashes_of_groups in hashes.items()}
    distinct_pairs = dict[FilePairs, None]()  # A dictionary, because it keeps its order.
    for pairs_of_reading in file_pairs.values():
        distinct_pairs |= dict.fromkeys(pairs_of_reading.values())
    matches = read_matches(annotations_json, path_of_hash, metric=metric, image_ids=image_ids, on_progress=on_progress)

    num_pieces = 1 + len(distinct_pairs)  # the resamples, and a test for each set of pairs
    numbered = numbered_units(annotations_json, units, image_ids)
    drawn = resampled(
        matches, metric, resamples=resamples, seed=seed, units=numbered, on_progress=_piece(0, num_pieces, on_progress)
    )
    truth = next(iter(matches.values()))
    draws = _swap_draws(truth.num_images, numbered, resamples=swaps or resamples, seed=seed)
    p_swap: dict[FilePairs, float] = {}
    for index, pairs in enumerate(distinct_pairs, start=1):
        matches_of_pairs = [(matches[a], matches[b]) for a, b in pairs]
        progress = _piece(index, num_pieces, on_progress)
        p_swap[pairs] = swap_test(matches_of_pairs, known_metric(metric), draws, on_progress=progress)

    comparisons = dict[N, Comparison]()
    for name, hashes_of_groups in hashes.items():
        runs: dict[str, dict[int, Drawn]] = {}
        value_by_seed: dict[str, dict[int, Estimate]] = {}
        for group, hashes_of_seeds in hashes_of_groups.items():
            runs_of_group = {number: drawn[content] for number, content in hashes_of_seeds.items()}
            runs[group] = runs_of_group
            value_by_seed[group] = {number: _estimate({number: run}) for number, run in runs_of_group.items()}
        comparisons[name] = Comparison(
            metric=metric,
            groups=tuple(runs),
            seeds={group: tuple(runs_of_group) for group, runs_of_group in runs.items()},
            num_images=truth.num_images,
            resamples=resamples,
            value={group: _estimate(runs_of_group) for group, runs_of_group in runs.items()},
            value_by_seed=value_by_seed,
            pairs=_pairs(runs, file_pairs[name], p_swap, family_of_group),
            seed=seed,
            images_a_category=images_a_category(truth, numbered),
            num_units=None if numbered is None else numbered.num_units,
        )
    return comparisons


def _piece(index: int, num_pieces: int, on_progress: OnProgress | None) -> OnProgress | None:
    """Turn the progress of one of several pieces of work into progress of the whole."""
    if on_progress is None:
        return None
    return lambda done, total: on_progress(index * total + done, num_pieces * total)


def _estimate(runs: Mapping[int, Drawn]) -> Estimate:
    """Return the mean of runs with its interval."""
    return group_total(runs).estimate.of_precision()


def _hashes_of(readings: Mapping[N, Files]) -> tuple[dict[N, Hashes], dict[str, Path]]:
    """Return the files of each reading by the hashes of their bytes, and one path for each hash."""
    hash_of_path: dict[Path, str] = {}
    hashes: dict[N, Hashes] = {}
    for name, files in readings.items():
        hashes_of_groups: dict[str, dict[int, str]] = {}
        for group, seeds in files.items():
            hashes_of_groups[group] = {}
            for number, file_path in sorted(seeds.items()):
                path = Path(file_path)
                if path not in hash_of_path:
                    # What is no file keeps its name, and its reader says so by that name.
                    hash_of_path[path] = sha256_of_file(path) if path.is_file() else str(path)
                hashes_of_groups[group][number] = hash_of_path[path]
        hashes[name] = hashes_of_groups
    # Sorted, so that of equal files the same one is read, and named in an error, whatever the order of readings.
    path_of_hash: dict[str, Path] = {}
    for path in sorted(hash_of_path, reverse=True):
        path_of_hash[hash_of_path[path]] = path
    return hashes, path_of_hash


def _swap_draws(num_images: int, units: Units | None, *, resamples: int, seed: int) -> NDArray[np.uint8]:
    """Return ``[R, N]``: 1 for the images that change places in a draw, those of a unit together."""
    if units is None:
        return swapped_images(num_images, resamples=resamples, seed=seed)
    return units.spread(swapped_images(units.num_units, resamples=resamples, seed=seed))


def _file_pairs(hashes: Hashes, families: Mapping[str, str]) -> dict[tuple[str, str], FilePairs]:
    """Return every pair of groups with its files, those of one training seed together."""
    file_pairs: dict[tuple[str, str], FilePairs] = {}
    for a, b in combinations(hashes, 2):
        is_one_family = families.get(a) == families.get(b)
        common_seeds = [number for number in hashes[a] if is_one_family and number in hashes[b]]
        # Without a common seed any pairing does for the swaps; a sorted one can be reproduced.
        seed_pairs = zip(common_seeds or hashes[a], common_seeds or hashes[b], strict=False)
        file_pairs[a, b] = tuple((hashes[a][seed_of_a], hashes[b][seed_of_b]) for seed_of_a, seed_of_b in seed_pairs)
    return file_pairs


def _pairs(
    runs: Mapping[str, Mapping[int, Drawn]],
    file_pairs: Mapping[tuple[str, str], FilePairs],
    p_swap: Mapping[FilePairs, float],
    families: Mapping[str, str],
) -> tuple[PairResult, ...]:
    """Return every pair of groups with its difference and its tests, corrected for the number of pairs."""
    results: list[PairResult] = []
    for (a, b), pairs in file_pairs.items():
        is_one_family = families.get(a) == families.get(b)
        total = difference_total(runs[a], runs[b], paired=is_one_family)
        image_std = total.image_std if math.isfinite(total.std) else 0.0
        num_units = next(iter(runs[a].values())).num_units
        results.append(
            PairResult(
                a=a,
                b=b,
                difference=total.estimate.of_difference(),
                p_swap=p_swap[pairs],
                p_holm=1.0,  # replaced below, when all pairs are there
                image_std=image_std,
                seed_std=total.seed_std,
                detectable=detectable(image_std, total.seed_std, len(pairs), num_units) or None,
                p_bootstrap=total.p,
                num_seeds=len(pairs),
                paired_by_seed=is_one_family and not runs[a].keys().isdisjoint(runs[b]),
                own_std=total.own_std,
            )
        )
    # Both tests have to agree, so the larger p counts. It is then corrected for the number of pairs.
    adjusted = holm([max(pair.p_swap, pair.p_bootstrap or 0.0) for pair in results])
    return tuple(replace(pair, p_holm=p) for pair, p in zip(results, adjusted, strict=True))
