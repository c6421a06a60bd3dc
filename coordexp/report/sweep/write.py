"""The report of a sweep: printed, written as files, stored in MLflow; and the chosen weights as a group file."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from markupsafe import Markup
from rich.console import Console

from coordexp.config.trees import Tree, with_value
from coordexp.data.tuning_split import TuningSplit
from coordexp.errors import ResourceError
from coordexp.files import write_text
from coordexp.report.page.page import FOOTER, render
from coordexp.report.sweep.response import short, write_response
from coordexp.report.text.rich_tables import fitting_parts, rich_table
from coordexp.report.text.tables import UNDEFINED, Table, TableRow
from coordexp.runs.folder import ExperimentFolder
from coordexp.shipped import command
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
    chart: Markup
    footer: str


def report_sweep(sweep_trials: SweepTrials, split: TuningSplit, console: Console) -> list[Path]:
    """Print the report of a sweep chosen on a split, write its files and the group file, and return their paths.

    Raises:
        ResourceError: if the files cannot be written.
    """
    trials, ranked = trial_results(sweep_trials), winners(sweep_trials)
    folder = ExperimentFolder.of(sweep_trials.sweep.config)
    output = folder.report
    try:
        output.mkdir(parents=True, exist_ok=True)
        settings = sweep_trials.sweep.settings
        paths, svg = write_response(settings.name, settings.space, trials, ranked, output)
        page = make_page(sweep_trials, split, trials, ranked, chart=Markup(svg))  # text was escaped where it was drawn
        write_text(output / "report.html", render("page.sweep.html.jinja", page))
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
    chart: Markup,
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
        footer=FOOTER,
    )


def trials_table(trials: Sequence[TrialResult]) -> Table:
    """Return one row for each trial, in the order of proposal; an AP before the last step stands in parentheses."""
    keys = list(trials[0].point) if trials else []
    rows = [
        TableRow(
            (
                trial.name,
                *(f"{value:g}" for value in trial.point.values()),
                _number(trial.ap) if trial.state == "finished" or trial.ap is None else f"({_number(trial.ap)})",
                str(trial.step),
                trial.state,
            )
        )
        for trial in trials
    ]
    return Table("Trials", ("trial", *map(short, keys), "AP", "steps", "state"), tuple(rows))


def winners_table(ranked: Sequence[Winner]) -> Table:
    """Return one row for each winner, the chosen one first."""
    keys = list(ranked[0].point) if ranked else []
    seeds = list(ranked[0].aps) if ranked else []
    heads = ("trial", *map(short, keys), "mean AP", "sd", *(f"seed {seed}" for seed in seeds), "in the search")
    rows = [
        TableRow(
            (
                item.name,
                *(f"{value:g}" for value in item.point.values()),
                *map(_number, (item.mean, item.spread, *item.aps.values(), item.search_ap)),
            )
        )
        for item in ranked
    ]
    return Table("Winners, run again with seeds that the search has not seen", heads, tuple(rows))


def tuned_group(sweep_trials: SweepTrials) -> str:
    """Return the name of the new group."""
    return f"{sweep_trials.sweep.settings.group}_tuned"


def group_file(sweep_trials: SweepTrials, chosen: Winner, split: TuningSplit) -> str:
    """Return the text of ``groups/GROUP_tuned.yaml``: the tuned group with the best winner's weights."""
    settings = sweep_trials.sweep.settings
    tree: Tree = dict(sweep_trials.sweep.overlay)
    for key, value in chosen.point.items():
        tree = with_value(tree, key.split("."), value, place=settings.name)
    spread = f" (standard deviation {chosen.spread:.4f})" if chosen.spread is not None else ""
    seeds = f"seeds {', '.join(str(seed) for seed in chosen.aps)}" if chosen.aps else f"seed {sweep_trials.seed}"
    comment = (
        f"# Group {settings.group} with the weights that sweep {settings.name} chose: trial {chosen.name}.\n"
        f"# AP {chosen.mean or 0.0:.4f}{spread} over {seeds}, on {split.num_val} images held out from the "
        f"{split.num_val + split.num_train + split.num_excluded} training images (seed {settings.tuning_split.seed});\n"
        "# the final validation images had no part in it.\n"
    )
    return comment + yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, width=120)


def next_commands(sweep_trials: SweepTrials) -> list[str]:
    """Return the commands that take the new group into the experiment, beside those it has."""
    sweep = sweep_trials.sweep
    group = tuned_group(sweep_trials)
    source = sweep.config.experiment.runs_dir / sweep.settings.name / f"{group}.yaml"
    target = sweep.settings.experiment.parent / "groups" / f"{group}.yaml"
    groups = ",".join(dict.fromkeys([*sweep.experiment.groups, group]))
    overrides = [text for text in sweep.overrides if not text.startswith("ablation.groups=")]
    config = _shown(sweep.settings.experiment)
    return [
        shlex.join(["cp", _shown(source), _shown(target)]),
        command("ablation", "--config", config, *overrides, f"ablation.groups=[{groups}]"),
    ]


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
        for part in fitting_parts(table, console):
            console.print(rich_table(part))
    for note in page.notes:
        show(f"• {note}")
    show("\nWritten:")
    for path in paths:
        show(f"  {path}")
    if page.commands:
        show("\nCompare the new group with the others:")
        for command in page.commands:
            show(command)


def _number(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.4f}"


def _shown(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
