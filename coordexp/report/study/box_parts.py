"""What was recorded about boxes, by group: read from the runs, made again for runs of before it was recorded."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from coordexp.files import JsonValue
from coordexp.report.progress import Progress
from coordexp.report.study.artifacts import FINAL_CONSTRAINED, Artifacts
from coordexp.report.study.breakdown import Breakdown, make_breakdown
from coordexp.report.study.cache import StatisticsCache, content_key
from coordexp.report.study.data import RunData
from coordexp.report.study.distributions import CoordCurves, choose_curves
from coordexp.runs.folder import DecodingFolder

if TYPE_CHECKING:
    from coordexp.evaluate.analysis_file import Analysis

_BREAKDOWN = TypeAdapter(Breakdown)
_CURVES = TypeAdapter(tuple[CoordCurves, ...])


def group_breakdowns(
    runs: Sequence[RunData],
    annotations: Path,
    *,
    artifacts: Artifacts,
    cache: StatisticsCache,
    on_progress: Progress,
) -> dict[str, Breakdown]:
    """Return a breakdown for each group whose runs left their objects.

    Args:
        runs: finished runs.
        annotations: the split's annotation file.
        artifacts: finds files.
        cache: keeps what was made.
        on_progress: told how many groups are done.

    Raises:
        DataError: if a file is malformed.
    """
    groups = by_group(runs)
    found: dict[str, Breakdown] = {}
    for done, (group, members) in enumerate(groups.items()):
        on_progress("analysing boxes", done, len(groups))
        folders = [place for run in members if (place := _source(run, artifacts)) is not None]
        if folders:
            files = [(path.name, path) for place in folders for path in _files(place)]
            found[group] = cache.get(
                f"boxes/{group}",
                content_key([("annotations", annotations), *files], "breakdown"),
                lambda folders=folders: _make(folders, annotations),
                write=lambda made: _BREAKDOWN.dump_python(made, mode="json"),
                read=_BREAKDOWN.validate_python,
            )
    return found


def group_curves(
    runs: Sequence[RunData], annotations: Path, *, artifacts: Artifacts, cache: StatisticsCache
) -> tuple[tuple[CoordCurves, ...], list[str]]:
    """Return coord distributions of chosen edges, and the groups that kept none; each group's first run is shown.

    Raises:
        DataError: if a file is malformed.
    """
    first = {group: members[0] for group, members in by_group(runs).items()}
    files = {
        group: path
        for group, run in first.items()
        if (path := artifacts.file(run, FINAL_CONSTRAINED.distributions)) is not None
    }
    lacking = [group for group in first if group not in files]
    aliases = _aliases(runs[0], artifacts) if runs else {}

    def write(found: tuple[CoordCurves, ...]) -> JsonValue:
        return _CURVES.dump_python(found, mode="json")

    key = content_key([("annotations", annotations), *files.items()], aliases)
    curves = cache.get(
        "curves",
        key,
        lambda: choose_curves(annotations, files, aliases=aliases),
        write=write,
        read=_CURVES.validate_python,
    )
    return curves, lacking


def by_group(runs: Sequence[RunData]) -> dict[str, list[RunData]]:
    """Return runs by group, in order."""
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    return groups


def _make(sources: Sequence[Path], annotations: Path) -> Breakdown:
    return make_breakdown([_read(source, annotations).boxes["expected"] for source in sources])


def _source(run: RunData, artifacts: Artifacts) -> Path | None:
    """Return ``analysis.json``, or the folder it can be made from."""
    path = artifacts.file(run, FINAL_CONSTRAINED.analysis)
    if path is not None:
        return path
    folder = artifacts.folder(run, FINAL_CONSTRAINED.path)
    return folder if folder is not None and DecodingFolder(folder).objects.is_file() else None


def _files(source: Path) -> list[Path]:
    return [source] if source.is_file() else sorted(path for path in source.iterdir() if path.is_file())


def _read(source: Path, annotations: Path) -> "Analysis":
    # Here: they bring torch, which a report from its cache does without.
    from coordexp.evaluate.analysis import analyse
    from coordexp.evaluate.analysis_file import Analysis

    return Analysis.read(source) if source.is_file() else analyse(annotations, source)


def _aliases(run: RunData, artifacts: Artifacts) -> Mapping[str, str]:
    evaluation = artifacts.config(run).get("evaluation")
    aliases = evaluation.get("aliases") if isinstance(evaluation, dict) else None
    return {str(key): str(value) for key, value in aliases.items()} if isinstance(aliases, dict) else {}
