"""All groups of an experiment on one metric: values, differences, tests, and the smallest difference they can find.

Legend of shapes: ``R`` resamples, ``S`` seeds.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from coordexp.detection.kernels import Matches
from coordexp.statistics.bootstrap import Drawn, FilePath, check_groups, known_metric, read_matches, resampled
from coordexp.statistics.intervals import detectable, estimate
from coordexp.statistics.permutation import holm, swap_test
from coordexp.statistics.resampling import OnProgress, check_plan
from coordexp.statistics.results import Comparison, PairResult
from coordexp.statistics.seeds import difference_parts, group_part, total

Run = tuple[str, int]


def compare(
    annotations_json: FilePath,
    detections: Mapping[str, Mapping[int, FilePath]],
    *,
    metric: str = "AP",
    resamples: int = 2000,
    seed: int = 0,
    image_ids: Collection[int] | None = None,
    threads: int | None = None,
    on_progress: OnProgress | None = None,
) -> Comparison:
    """Compare groups of an experiment, each with one or several seeds, on the same images.

    Args:
        annotations_json: ground truth in COCO format.
        detections: group -> training seed -> detections in COCO's results format.
        metric: AP, AP50, AP75, AP_small, AP_medium or AP_large.
        resamples: bootstrap resamples, and as many draws of the swap test.
        seed: of the draws; the same seed gives the same numbers, whatever the number of threads.
        image_ids: only these images; None for every image of the annotation file.
        threads: number of threads; None for one per usable core.
        on_progress: called with the number of draws done and their total.

    Returns:
        The comparison; without pairs if there is one group.

    Raises:
        DataError: if a file or an entry is malformed, or an image id is unknown.
        ComparisonError: if there is nothing to compare, or nothing to resample.
    """
    check_groups(detections)
    check_plan(resamples=resamples, seed=seed)
    files = {(group, number): path for group, seeds in detections.items() for number, path in sorted(seeds.items())}
    matches = read_matches(annotations_json, files, metric=metric, image_ids=image_ids)
    plan = _Plan(metric=metric, resamples=resamples, seed=seed, threads=threads)
    couples = list(combinations(detections, 2))
    rounds = 1 + len(couples)
    runs: dict[str, dict[int, Drawn]] = {group: {} for group in detections}
    progress = _share(on_progress, part=0, parts=rounds)
    drawn = resampled(matches, metric, resamples=resamples, seed=seed, threads=threads, on_progress=progress)
    for (group, number), run in drawn.items():
        runs[group][number] = run
    pairs = [
        _pair(matches, runs, couple, plan=plan, on_progress=_share(on_progress, part=i, parts=rounds))
        for i, couple in enumerate(couples, start=1)
    ]
    # A pair is as sure as the less sure of its two tests; then for the number of pairs.
    adjusted = holm([max(pair.p_swap, pair.p_bootstrap or 0.0) for pair in pairs])
    return Comparison(
        metric=metric,
        groups=tuple(detections),
        seeds={group: tuple(seeds) for group, seeds in runs.items()},
        num_images=next(iter(matches.values())).num_images,
        resamples=resamples,
        value={group: total([group_part(seeds)], seed=seed).estimate for group, seeds in runs.items()},
        value_by_seed={
            group: {number: estimate(run.value, run.draws) for number, run in seeds.items()}
            for group, seeds in runs.items()
        },
        pairs=tuple(replace(pair, p_holm=p) for pair, p in zip(pairs, adjusted, strict=True)),
        seed=seed,
    )


@dataclass(frozen=True)
class _Plan:
    metric: str
    resamples: int
    seed: int
    threads: int | None


def _pair(
    matches: Mapping[Run, Matches],
    runs: Mapping[str, Mapping[int, Drawn]],
    couple: tuple[str, str],
    *,
    plan: _Plan,
    on_progress: OnProgress | None,
) -> PairResult:
    a, b = couple
    common = [number for number in runs[a] if number in runs[b]]
    # Without a common seed any pairing does for the swaps; sorted order can be reproduced.
    twins = list(zip(common or runs[a], common or runs[b], strict=False))
    found = total(difference_parts(runs[a], runs[b]), seed=plan.seed)
    num_seeds = len(twins)
    return PairResult(
        a=a,
        b=b,
        difference=found.estimate,
        p_swap=swap_test(
            [(matches[a, i], matches[b, j]) for i, j in twins],
            known_metric(plan.metric),
            resamples=plan.resamples,
            seed=plan.seed,
            threads=plan.threads,
            on_progress=on_progress,
        ),
        p_holm=1.0,  # known once there are all pairs
        image_std=found.image_std,
        seed_std=found.seed_std,
        detectable=detectable(found.image_std, found.seed_std, num_seeds) or None,
        p_bootstrap=found.p,
        num_seeds=num_seeds,
        paired_by_seed=bool(common),
    )


def _share(on_progress: OnProgress | None, *, part: int, parts: int) -> OnProgress | None:
    """Turn the progress of one part of the work into progress of the whole."""
    if on_progress is None:
        return None
    return lambda done, of: on_progress(part * of + done, parts * of)
