"""The report of a sweep: printed, written as files, stored in MLflow; and the chosen weights as a group file."""

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from coordexp.data.splits.tuning_split import TuningSplit
from coordexp.errors import ResourceError
from coordexp.files import write_text
from coordexp.report.page.page import page_template
from coordexp.report.sweep.group import group_file, next_commands, tuned_group
from coordexp.report.sweep.plot import write_response
from coordexp.report.sweep.tables import trials_table, winners_table
from coordexp.report.text.render import rich_table
from coordexp.report.text.tables import Table
from coordexp.runs.folder import ExperimentFolder
from coordexp.sweep.results import TrialResult, Winner, at_the_edge, trial_results, verdict, winners
from coordexp.sweep.trials import SweepTrials


@dataclass(frozen=True)
class SweepPage:
    """What a report of a sweep says; the template reads it."""

    title: str
    verdict: str
    summary: str
    missing: Sequence[str]
    notes: Sequence[str]
    tables: Sequence[Table]
    group_file: str
    commands: Sequence[str]
    chart: str
    footer: str


def report_sweep(sweep_trials: SweepTrials, split: TuningSplit, console: Console) -> list[Path]:
    """Print the report, write its files and the group file, and return their paths.

    Args:
        sweep_trials: of the sweep.
        split: what it was chosen on.
        console: where to print.

    Raises:
        ResourceError: if the files cannot be written.
    """
    trials, ranked = trial_results(sweep_trials), winners(sweep_trials)
    folder = ExperimentFolder.of(sweep_trials.sweep.config)
    output = folder.report
    try:
        output.mkdir(parents=True, exist_ok=True)
        paths = write_response(
            sweep_trials.sweep.settings.name, sweep_trials.sweep.settings.space, trials, ranked, output
        )
        chart = paths[-1].read_text(encoding="utf-8")
        page = make_page(sweep_trials, split, trials, ranked, chart=chart[chart.index("<svg") :])
        write_text(output / "report.html", page_template("page.sweep.html.jinja").render(page=page))
        paths.append(output / "report.html")
        if page.group_file:
            paths.append(folder.path / f"{tuned_group(sweep_trials)}.yaml")
            write_text(paths[-1], page.group_file)
    except OSError as error:
        raise ResourceError(
            f"the report cannot be written to {output} ({error.strerror}): expected a directory that can be written"
        ) from error
    _print(page, paths, console)
    return paths


def make_page(
    sweep_trials: SweepTrials,
    split: TuningSplit,
    trials: Sequence[TrialResult],
    ranked: Sequence[Winner],
    *,
    chart: str,
) -> SweepPage:
    """Put together what the report says."""
    settings = sweep_trials.sweep.settings
    chosen = ranked[0] if ranked and ranked[0].mean is not None else None
    weights = ", ".join(f"{key} = {value:g}" for key, value in chosen.point.items()) if chosen else ""
    lead = f"Chosen for group {settings.group}: {weights}. " if chosen else ""
    states = [trial.state for trial in trials]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    notes: list[str] = []
    if any(trial.state != "finished" and trial.ap is not None for trial in trials):
        notes.append("An AP in parentheses is of a trial that did not take every step: its last one, on a subset.")
    if settings.winners.seeds:
        notes.append(
            "The mean leaves the search's own seed out: the point was taken for that AP, which is too high for it."
        )
    if chosen and sweep_trials.sweep.overrides:
        overrides = ", ".join(sweep_trials.sweep.overrides)
        notes.append(
            f"The command below carries what was set for the sweep ({overrides}): leave out what the comparison should "
            "not have."
        )
    return SweepPage(
        title=f"Sweep {settings.name}",
        verdict=lead + verdict(ranked),
        summary=f"{len(trials)} of {settings.num_points} trials ({settings.search.method}): {counted}. "
        f"{split.sentence()}.",
        missing=_missing(trials, ranked),
        notes=[*(at_the_edge(sweep_trials, chosen) if chosen else ()), *notes],
        tables=[table for table in (winners_table(ranked), trials_table(trials)) if table.rows],
        group_file=group_file(sweep_trials, chosen, split) if chosen else "",
        commands=next_commands(sweep_trials) if chosen else (),
        chart=chart,
        footer=f"coordexp {importlib.metadata.version('coordexp')}. This file needs no network and no other file.",
    )


def _missing(trials: Sequence[TrialResult], ranked: Sequence[Winner]) -> list[str]:
    lines = [f"{trial.name} failed: {trial.message}" for trial in trials if trial.state == "failed"]
    lines += [f"{trial.name} was stopped: {trial.message}" for trial in trials if trial.state == "stopped"]
    for winner in ranked:
        without = [str(seed) for seed, ap in winner.aps.items() if ap is None]
        if without:
            lines.append(f"{winner.name} has no AP for seed {', '.join(without)}; its mean is over the others")
    return lines


def _print(page: SweepPage, paths: Sequence[Path], console: Console) -> None:
    def show(line: str, style: str = "") -> None:
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    show(f"\n{page.title}: {page.summary}")
    show(f"\n{page.verdict}", "bold")
    for line in page.missing:
        show(f"• {line}", "red")
    for table in page.tables:
        show(f"\n{table.title}", "bold")
        console.print(rich_table(table))
    for note in page.notes:
        show(f"• {note}")
    show("\nWritten:")
    for path in paths:
        show(f"  {path}")
    if page.commands:
        show("\nCompare the new group with the others:")
        for command in page.commands:
            show(command)
