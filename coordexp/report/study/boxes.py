"""What a group's boxes look like in parts: the mean over its seeds of what each run's ``analysis.json`` holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordexp.errors import counted
from coordexp.evaluate.analysis import Analysis, BoxAnalysis, CategoryResult, CountResult, IouHistogram, SizeResult
from coordexp.report.records.artifacts import FINAL_CONSTRAINED, Artifacts
from coordexp.report.records.data import RunRecord, by_group

Points = tuple[tuple[float, float], ...]
CountedPoint = tuple[float | None, float | None, int]
"""A bin of one seed: its two means, None where it is empty, and how many boxes it holds."""


@dataclass(frozen=True)
class ByLabel:
    """Parts of the ground truth by name: AP, None where COCO defines none, and the objects on which it rests."""

    ap: Mapping[str, float | None]
    num_gt: Mapping[str, int]


@dataclass(frozen=True)
class Breakdown:
    """One group; an empty part was not measured. AP is the mean over seeds, all else counts their boxes together."""

    iou: IouHistogram  # of matched pairs
    calibration: Points  # (mean score, share correct) of bins of the score
    width_by_error: Points  # (middle of a range of errors, mean width of the distribution), in bins
    by_category: ByLabel
    by_size: ByLabel  # of the object
    by_count: ByLabel  # of objects in the image
    maps: tuple[tuple[int, ...], ...]  # counts by true (rows) and predicted coordinate, all four together


def group_breakdowns(runs: Sequence[RunRecord], artifacts: Artifacts) -> dict[str, Breakdown]:
    """Return a breakdown for each group whose finished runs kept an analysis of their boxes, by its own reading."""
    breakdowns: dict[str, Breakdown] = {}
    for group, group_runs in by_group(runs).items():
        analyses: list[BoxAnalysis] = []
        for run in group_runs:
            path = artifacts.file(run, FINAL_CONSTRAINED.analysis)
            if path is not None:
                analyses.append(Analysis.read(path).boxes[run.reading])
        if analyses:
            breakdowns[group] = _breakdown(analyses)
    return breakdowns


def _breakdown(analyses: Sequence[BoxAnalysis]) -> Breakdown:
    """Return the breakdown of a group from the analyses of its seeds, at least one."""
    iou_columns = zip(*(analysis.matched_iou.counts for analysis in analyses), strict=True)
    coordinate_maps = [counts for analysis in analyses for counts in analysis.coordinates.values()]
    score_bins: list[list[CountedPoint]] = []
    width_bins: list[list[CountedPoint]] = []
    for analysis in analyses:
        score_bins.append([(b.mean_score, b.fraction_correct, b.count) for b in analysis.score_bins])
        width_bins.append([((b.low + b.high) / 2, b.mean_width, b.count) for b in analysis.width_by_error])
    return Breakdown(
        iou=IouHistogram(analyses[0].matched_iou.edges, tuple(map(sum, iou_columns))),
        calibration=_mean_points(score_bins),
        width_by_error=_mean_points(width_bins),
        by_category=_by_label([{item.name: item for item in analysis.categories} for analysis in analyses]),
        by_size=_by_label([{item.name: item for item in analysis.sizes} for analysis in analyses]),
        by_count=_by_label([{_count_name(item): item for item in analysis.object_counts} for analysis in analyses]),
        maps=_summed_maps(coordinate_maps),
    )


def _summed_maps(maps: Sequence[Sequence[Sequence[int]]]) -> tuple[tuple[int, ...], ...]:
    """Add up maps of counts, cell by cell."""
    summed: list[tuple[int, ...]] = []
    for same_rows in zip(*maps, strict=True):
        summed.append(tuple(map(sum, zip(*same_rows, strict=True))))
    return tuple(summed)


def _mean_points(bins_by_seed: Sequence[Sequence[CountedPoint]]) -> Points:
    """Return the mean of the same bin over seeds, weighted by its count; a bin that no seed has filled is left out."""
    points: list[tuple[float, float]] = []
    for same_bins in zip(*bins_by_seed, strict=False):
        filled = [(x, y, count) for x, y, count in same_bins if x is not None and y is not None and count]
        total = sum(count for _, _, count in filled)
        if total:
            mean_x = sum(x * count for x, _, count in filled) / total
            mean_y = sum(y * count for _, y, count in filled) / total
            points.append((mean_x, mean_y))
    return tuple(points)


def _count_name(item: CountResult) -> str:
    if item.high is None:
        return f"{item.low} or more objects"
    if item.low == item.high:
        return counted(item.low, "object")
    return f"{item.low} to {item.high} objects"


def _by_label(results_by_seed: Sequence[Mapping[str, CategoryResult | SizeResult | CountResult]]) -> ByLabel:
    """Return AP of each label, mean over the seeds where it is defined, and the objects on which it rests."""
    aps: dict[str, list[float]] = {}
    num_gt: dict[str, int] = {}
    for results in results_by_seed:
        for name, result in results.items():
            defined_aps = aps.setdefault(name, [])
            if result.AP is not None:
                defined_aps.append(result.AP)
            num_gt[name] = result.num_gt
    return ByLabel({name: sum(values) / len(values) if values else None for name, values in aps.items()}, num_gt)
