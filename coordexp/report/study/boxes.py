"""What a group's boxes look like in parts: the mean over its seeds of what each run's ``analysis.json`` holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordexp.errors import counted
from coordexp.evaluate.analysis import Analysis, CategoryResult, CountResult, IouHistogram, SizeResult
from coordexp.report.study.artifacts import FINAL_CONSTRAINED, Artifacts
from coordexp.report.study.data import RunRecord, by_group

Points = tuple[tuple[float, float], ...]


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
    found: dict[str, Breakdown] = {}
    for group, members in by_group(runs).items():
        files = [(run, path) for run in members if (path := artifacts.file(run, FINAL_CONSTRAINED.analysis))]
        parts = [Analysis.read(path).boxes[run.reading] for run, path in files]
        if not parts:
            continue
        counts = tuple(sum(column) for column in zip(*(part.matched_iou.counts for part in parts), strict=True))
        maps = [counts for part in parts for counts in part.coordinates.values()]
        scores = [[(b.mean_score, b.fraction_correct, b.count) for b in part.score_bins] for part in parts]
        widths = [[((b.low + b.high) / 2, b.mean_width, b.count) for b in part.width_by_error] for part in parts]
        found[group] = Breakdown(
            iou=IouHistogram(parts[0].matched_iou.edges, counts),
            calibration=_points(scores),
            width_by_error=_points(widths),
            by_category=_by_label([{item.name: item for item in part.categories} for part in parts]),
            by_size=_by_label([{item.name: item for item in part.sizes} for part in parts]),
            by_count=_by_label([{_count_name(item): item for item in part.object_counts} for part in parts]),
            maps=tuple(tuple(map(sum, zip(*rows, strict=True))) for rows in zip(*maps, strict=True)),
        )
    return found


def _points(parts: Sequence[Sequence[tuple[float | None, float | None, int]]]) -> Points:
    """Add up the same bin of every seed, weighted by its count."""
    found: list[tuple[float, float]] = []
    for rows in zip(*parts, strict=False):
        there = [(x, y, count) for x, y, count in rows if x is not None and y is not None and count]
        if total := sum(count for _, _, count in there):
            mean_x, mean_y = (sum(row[at] * row[2] for row in there) / total for at in (0, 1))
            found.append((mean_x, mean_y))
    return tuple(found)


def _count_name(item: CountResult) -> str:
    if item.high is None:
        return f"{item.low} or more objects"
    if item.low == item.high:
        return counted(item.low, "object")
    return f"{item.low} to {item.high} objects"


def _by_label(parts: Sequence[Mapping[str, CategoryResult | SizeResult | CountResult]]) -> ByLabel:
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        there = [item.AP for part in parts if (item := part.get(name)) is not None and item.AP is not None]
        found[name] = sum(there) / len(there) if there else None
    return ByLabel(found, {name: item.num_gt for part in parts for name, item in part.items()})
