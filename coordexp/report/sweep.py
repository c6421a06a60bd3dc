"""The report of a sweep: printed, written as files, stored in MLflow; and the chosen weights as a group file."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup
from rich.console import Console

from coordexp.config.schema.search import Parameter
from coordexp.data.splits.tuning import TuningSplit
from coordexp.files import write_text
from coordexp.report.figures import INK, PALETTE, SOFT, figure_style, inline_svg, new_figure, save_figure
from coordexp.report.page.page import render
from coordexp.report.table import Table
from coordexp.report.text.render import show_table
from coordexp.report.text.tables import written
from coordexp.report.write import print_paths, writing
from coordexp.runs.folder import ExperimentFolder
from coordexp.search.group_file import group_file
from coordexp.shipped import command
from coordexp.sweep.results import TrialResult, Winner, at_the_edge, trial_results, verdict, winners
from coordexp.sweep.trials import SweepTrials

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FINISHED, _CHOSEN = PALETTE["c0"], PALETTE["c1"]


def report_sweep(sweep_trials: SweepTrials, split: TuningSplit, console: Console) -> list[Path]:
    """Print the report of a sweep, write its files and the group file, and return their paths.

    Args:
        sweep_trials: the trials of the sweep, wherever they stand.
        split: the tuning split on which points were chosen.
        console: for the tables.
    """
    trials, ranked = trial_results(sweep_trials), winners(sweep_trials)
    settings = sweep_trials.sweep.settings
    folder = ExperimentFolder.of(sweep_trials.sweep.config)
    group = f"{settings.group}_tuned"
    chosen = ranked[0] if ranked and ranked[0].mean is not None else None
    commands: list[str] = []
    group_text = ""
    if chosen is not None:
        commands = _next_commands(sweep_trials, group)
        group_text = _group_file(sweep_trials, chosen, split)
    content = _SweepReport(
        title=f"Sweep {settings.name}",
        verdict=_verdict(settings.group, ranked, chosen),
        summary=_summary(sweep_trials, trials, split),
        missing=_missing(trials, ranked),
        notes=_notes(sweep_trials, trials, chosen),
        tables=[table for table in (winners_table(ranked), trials_table(trials)) if table.rows],
        group_file=group_text,
        commands=commands,
    )
    with writing(folder.report):
        paths, svg = write_response(settings.name, settings.space, trials, ranked, folder.report)
        page_path = folder.report / "report.html"
        # The chart's text was escaped where it was drawn.
        write_text(page_path, render("page.sweep.html.jinja", {**vars(content), "chart": Markup(svg)}))
        paths.append(page_path)
        if group_text:
            group_path = folder.path / f"{group}.yaml"
            write_text(group_path, group_text)
            paths.append(group_path)
    _print(content, paths, console)
    return paths


@dataclass(frozen=True)
class _SweepReport:
    """What a page and a terminal show of a sweep; the names are those of the page's template."""

    title: str
    verdict: str
    summary: str
    missing: Sequence[str]
    notes: Sequence[str]
    tables: Sequence[Table]
    group_file: str  # "" if no point was chosen
    commands: Sequence[str]  # none if no point was chosen


def _print(content: _SweepReport, paths: list[Path], console: Console) -> None:
    def show(line: str, style: str = "") -> None:
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    show(f"\n{content.title}: {content.summary}")
    show(f"\n{content.verdict}", "bold")
    show("".join(f"\u2022 {line}\n" for line in content.missing), "red")
    for table in content.tables:
        show(f"\n{table.title}", "bold")
        show_table(table, console)
    show("".join(f"\u2022 {note}\n" for note in content.notes))
    print_paths(paths, console)
    if content.commands:
        show("\n".join(["\nCompare the new group with the others:", *content.commands]))


def _verdict(group: str, ranked: Sequence[Winner], chosen: Winner | None) -> str:
    if chosen is None:
        return verdict(ranked)
    weights = ", ".join(f"{key} = {value:g}" for key, value in chosen.point.items())
    return f"Chosen for group {group}: {weights}. {verdict(ranked)}"


def _summary(sweep_trials: SweepTrials, trials: Sequence[TrialResult], split: TuningSplit) -> str:
    settings = sweep_trials.sweep.settings
    states = [trial.state for trial in trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"{len(trials)} of {settings.num_points} trials ({settings.search.method}): {counts}. {split.sentence()}."


def _missing(trials: Sequence[TrialResult], ranked: Sequence[Winner]) -> list[str]:
    """Return a sentence for each trial without a result, and for each winner that lacks seeds."""
    sentences = [f"{trial.name} failed: {trial.message}" for trial in trials if trial.state == "failed"]
    sentences += [f"{trial.name} was stopped: {trial.message}" for trial in trials if trial.state == "stopped"]
    for winner in ranked:
        seeds_without_ap = [str(seed) for seed, ap in winner.aps.items() if ap is None]
        if seeds_without_ap:
            seeds = ", ".join(seeds_without_ap)
            sentences.append(f"{winner.name} has no AP for seed {seeds}; its mean is over the others")
    return sentences


def _notes(sweep_trials: SweepTrials, trials: Sequence[TrialResult], chosen: Winner | None) -> list[str]:
    """Return what to know when reading the tables, and when copying the command below them."""
    notes: list[str] = []
    if chosen is not None:
        notes += at_the_edge(sweep_trials, chosen)
    if any(trial.state != "finished" and trial.ap is not None for trial in trials):
        notes.append("An AP in parentheses is of a trial that did not take every step: its last one, on a subset.")
    if sweep_trials.sweep.settings.winners.seeds:
        notes.append(
            "The mean leaves the search's own seed out: the point was taken for that AP, which is too high for it."
        )
    overrides = ", ".join(sweep_trials.sweep.overrides)
    if chosen is not None and overrides:
        notes.append(
            f"The command below carries what was set for the sweep ({overrides}): leave out what should not be."
        )
    return notes


def trials_table(trials: Sequence[TrialResult]) -> Table:
    """Return one row for each trial, in the order of proposal; an AP before the last step is in parentheses."""
    keys = map(short, trials[0].point) if trials else ()
    rows: list[tuple[str, ...]] = []
    for trial in trials:
        ap = written(trial.ap, digits=4)
        ap = ap if trial.state == "finished" or trial.ap is None else f"({ap})"
        rows.append((trial.name, *(f"{value:g}" for value in trial.point.values()), ap, str(trial.step), trial.state))
    return Table.of("Trials", ("trial", *keys, "AP", "steps", "state"), rows)


def winners_table(ranked: Sequence[Winner]) -> Table:
    """Return one row for each winner, the best first, with its AP for each further seed."""
    keys = [short(key) for key in ranked[0].point] if ranked else []
    seeds = list(ranked[0].aps) if ranked else []
    rows: list[tuple[str, ...]] = []
    for winner in ranked:
        values = [f"{value:g}" for value in winner.point.values()]
        aps = (winner.mean, winner.spread, *winner.aps.values(), winner.search_ap)
        rows.append((winner.name, *values, *(written(ap, digits=4) for ap in aps)))
    heads = ("trial", *keys, "mean AP", "sd", *(f"seed {seed}" for seed in seeds), "in the search")
    return Table.of("Winners, run again with seeds that the search has not seen", heads, rows)


def _group_file(sweep_trials: SweepTrials, chosen: Winner, split: TuningSplit) -> str:
    """Return the text of ``groups/GROUP_tuned.yaml``: the tuned group with the best winner's weights."""
    settings = sweep_trials.sweep.settings
    spread = f" (standard deviation {chosen.spread:.4f})" if chosen.spread is not None else ""
    seeds = f"seeds {', '.join(str(seed) for seed in chosen.aps)}" if chosen.aps else f"seed {sweep_trials.seed}"
    comment = (
        f"Group {settings.group} with the weights that sweep {settings.name} chose: trial {chosen.name}.",
        f"AP {chosen.mean or 0.0:.4f}{spread} over {seeds}, on {split.num_val} images held out from the "
        f"{split.num_val + split.num_train + split.num_excluded} training images (seed {settings.tuning_split.seed});",
        "the final validation images had no part in it.",
    )
    return group_file(sweep_trials.sweep.overlay, chosen.point, comment=comment)


def _next_commands(sweep_trials: SweepTrials, group: str) -> list[str]:

    def shown(path: Path) -> str:
        return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)

    sweep = sweep_trials.sweep
    source = sweep.config.experiment.runs_dir / sweep.settings.name / f"{group}.yaml"
    target = sweep.settings.experiment.parent / "groups" / f"{group}.yaml"
    groups = ",".join(dict.fromkeys([*sweep.experiment.groups, group]))
    overrides = [text for text in sweep.overrides if not text.startswith("ablation.groups=")]
    config = shown(sweep.settings.experiment)
    return [
        shlex.join(["cp", shown(source), shown(target)]),
        command("ablation", "--config", config, *overrides, f"ablation.groups=[{groups}]"),
    ]


def write_response(
    name: str, space: Mapping[str, Parameter], trials: Sequence[TrialResult], ranked: Sequence[Winner], output: Path
) -> tuple[list[Path], str]:
    """Draw AP against each searched weight as PNG and SVG.

    Args:
        name: of the sweep.
        space: the searched weights.
        trials: of the search; those without an AP are left out.
        ranked: the winners, the best first.
        output: the folder.

    Returns:
        The paths of the files, and an ``<svg>`` for the page.
    """
    measured = [trial for trial in trials if trial.ap is not None]
    with figure_style():
        figure = new_figure(300 * len(space) + 230, 360)
        figure.suptitle(f"{name}: AP on the tuning split", fontsize=12, color=INK)
        panels = figure.subplots(1, len(space), squeeze=False)[0]
        for axes, (key, parameter) in zip(panels, space.items(), strict=True):
            _draw_trials(axes, key, measured, is_only_weight=len(space) == 1)
            _draw_winners(axes, key, ranked)
            _draw_axis(axes, key, parameter)
        panels[0].set_ylabel("AP, constrained decoding")
        panels[0].legend(fontsize=9)
        if not measured:
            for axes in panels:
                axes.text(0.5, 0.5, "no AP yet", ha="center", va="center", transform=axes.transAxes, color=SOFT)
        paths = save_figure(figure, output / "response")
        return paths, inline_svg(figure, label="AP against the searched weights; the same numbers are in the tables")


def _draw_trials(axes: "Axes", key: str, measured: Sequence[TrialResult], *, is_only_weight: bool) -> None:
    """Draw a dot for each trial, joined by a line if nothing else was searched; a cross if it ended early."""
    whole = sorted((trial.point[key], trial.ap or 0.0) for trial in measured if trial.state == "finished")
    cut_short = [(trial.point[key], trial.ap or 0.0) for trial in measured if trial.state != "finished"]
    form = "o-" if is_only_weight else "o"
    xs, ys = [x for x, _ in whole], [y for _, y in whole]
    axes.plot(xs, ys, form, color=_FINISHED, label="every step done", linewidth=1.3)
    if cut_short:
        xs, ys = [x for x, _ in cut_short], [y for _, y in cut_short]
        axes.plot(xs, ys, "x", color=SOFT, label="stopped early: the last AP, on a subset")


def _draw_winners(axes: "Axes", key: str, ranked: Sequence[Winner]) -> None:
    """Draw mean and standard deviation of each winner over its further seeds."""
    for winner in ranked:
        if winner.aps and winner.mean is not None:
            # One entry of the legend stands for all winners.
            label = "further seeds: mean and standard deviation" if winner is ranked[0] else None
            x, y = [winner.point[key]], [winner.mean]
            axes.errorbar(x, y, yerr=winner.spread, fmt="D", color=_CHOSEN, capsize=4, label=label)


def _draw_axis(axes: "Axes", key: str, parameter: Parameter) -> None:
    """Give the axis of a weight its scale, and ticks at the values of a grid."""
    from matplotlib.ticker import NullFormatter, NullLocator

    axes.grid(visible=True)
    axes.set_xscale(parameter.scale)
    if parameter.values is not None:
        axes.xaxis.set_ticks([float(value) for value in parameter.values])
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{:g}".format)  # 0.1, and not a power of ten
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_label_text(short(key) + (", log scale" if parameter.scale == "log" else ""))


def short(key: str) -> str:
    """Return ``lambda_coord`` of ``objective.lambda_coord``."""
    return key.rpartition(".")[2]
