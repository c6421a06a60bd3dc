"""A sweep -> tables, as text that every output format shows alike."""

from collections.abc import Mapping, Sequence

from coordexp.report.text.tables import UNDEFINED, Row, Table
from coordexp.sweep.results import TrialResult, Winner
from coordexp.sweep.schema import Number


def trials_table(trials: Sequence[TrialResult]) -> Table:
    """Return one row for each trial, in the order of proposal."""
    keys = list(trials[0].point) if trials else []
    rows = [Row((trial.name, *point_cells(trial.point), _ap(trial), str(trial.step), trial.state)) for trial in trials]
    return Table("Trials", ("trial", *map(short, keys), "AP", "steps", "state"), tuple(rows))


def winners_table(ranked: Sequence[Winner]) -> Table:
    """Return one row for each winner, the chosen one first."""
    keys = list(ranked[0].point) if ranked else []
    seeds = list(ranked[0].aps) if ranked else []
    heads = ("trial", *map(short, keys), "mean AP", "sd", *(f"seed {seed}" for seed in seeds), "in the search")
    rows = [
        Row(
            (
                item.name,
                *point_cells(item.point),
                _number(item.mean),
                _number(item.spread),
                *(_number(ap) for ap in item.aps.values()),
                _number(item.search_ap),
            )
        )
        for item in ranked
    ]
    return Table("Winners, run again with seeds that the search has not seen", heads, tuple(rows))


def short(key: str) -> str:
    """Return ``lambda_coord`` of ``objective.lambda_coord``."""
    return key.rpartition(".")[2]


def point_cells(point: Mapping[str, Number]) -> list[str]:
    """Return the values of a point as text."""
    return [f"{value:g}" for value in point.values()]


def _ap(trial: TrialResult) -> str:
    """Return an AP; one of a subset, before the last step, stands in parentheses."""
    text = _number(trial.ap)
    return text if trial.state == "finished" or trial.ap is None else f"({text})"


def _number(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.4f}"
