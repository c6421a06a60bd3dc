"""The report of a sweep: printed, written as files, stored in MLflow; and the chosen weights as a group file."""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup
from rich.console import Console

from coordexp.config.schema.search import Parameter
from coordexp.data.splits.tuning import TuningSplit
from coordexp.files import write_text
from coordexp.report.figures import INK, PALETTE, SOFT, figure_style, inline_svg, new_figure, save_figure
from coordexp.report.page.page import render
from coordexp.report.text.render import show_table
from coordexp.report.text.tables import Table, written
from coordexp.report.write import print_paths, writing
from coordexp.runs.folder import ExperimentFolder
from coordexp.search.group_file import group_file
from coordexp.shipped import command
from coordexp.sweep.results import TrialResult, Winner, at_the_edge, trial_results, verdict, winners
from coordexp.sweep.trials import SweepTrials

_FINISHED, _CHOSEN = PALETTE["c0"], PALETTE["c1"]


def report_sweep(sweep_trials: SweepTrials, split: TuningSplit, console: Console) -> list[Path]:
    """Print the report of a sweep chosen on a split, write its files and the group file, and return their paths."""
    trials, ranked = trial_results(sweep_trials), winners(sweep_trials)
    settings, folder = sweep_trials.sweep.settings, ExperimentFolder.of(sweep_trials.sweep.config)
    group, title = f"{settings.group}_tuned", f"Sweep {settings.name}"
    chosen = ranked[0] if ranked and ranked[0].mean is not None else None
    weights = ", ".join(f"{key} = {value:g}" for key, value in chosen.point.items()) if chosen else ""
    says = (f"Chosen for group {settings.group}: {weights}. " if chosen else "") + verdict(ranked)
    states = [trial.state for trial in trials]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    head = f"{len(trials)} of {settings.num_points} trials ({settings.search.method}): {counted}. {split.sentence()}."
    missing, notes = _missing(trials, ranked), _notes(sweep_trials, trials, chosen)
    tables = [table for table in (winners_table(ranked), trials_table(trials)) if table.rows]
    commands = _next_commands(sweep_trials, group) if chosen else []
    text_of_group = _group_file(sweep_trials, chosen, split) if chosen else ""
    found = {"title": title, "verdict": says, "summary": head, "missing": missing, "notes": notes, "tables": tables}
    new_group = {"group_file": text_of_group, "commands": commands}
    with writing(folder.report):
        paths, svg = write_response(settings.name, settings.space, trials, ranked, folder.report)
        page = {**found, **new_group, "chart": Markup(svg)}  # the chart's text was escaped where it was drawn
        paths.append(folder.report / "report.html")
        write_text(paths[-1], render("page.sweep.html.jinja", page))
        if text_of_group:
            paths.append(folder.path / f"{group}.yaml")
            write_text(paths[-1], text_of_group)

    def show(line: str, style: str = "") -> None:
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    show(f"\n{title}: {head}")
    show(f"\n{says}", "bold")
    show("".join(f"• {line}\n" for line in missing), "red")
    for table in tables:
        show(f"\n{table.title}", "bold")
        show_table(table, console)
    show("".join(f"• {note}\n" for note in notes))
    print_paths(paths, console)
    if commands:
        show("\n".join(["\nCompare the new group with the others:", *commands]))
    return paths


def _missing(trials: Sequence[TrialResult], ranked: Sequence[Winner]) -> list[str]:
    lines = [f"{trial.name} failed: {trial.message}" for trial in trials if trial.state == "failed"]
    lines += [f"{trial.name} was stopped: {trial.message}" for trial in trials if trial.state == "stopped"]
    for winner in ranked:
        if without := [str(seed) for seed, ap in winner.aps.items() if ap is None]:
            lines.append(f"{winner.name} has no AP for seed {', '.join(without)}; its mean is over the others")
    return lines


def _notes(sweep_trials: SweepTrials, trials: Sequence[TrialResult], chosen: Winner | None) -> list[str]:
    notes, overrides = at_the_edge(sweep_trials, chosen) if chosen else [], sweep_trials.sweep.overrides
    if any(trial.state != "finished" and trial.ap is not None for trial in trials):
        notes.append("An AP in parentheses is of a trial that did not take every step: its last one, on a subset.")
    if sweep_trials.sweep.settings.winners.seeds:
        notes.append(
            "The mean leaves the search's own seed out: the point was taken for that AP, which is too high for it."
        )
    if chosen and overrides:
        said = ", ".join(overrides)
        notes.append(f"The command below carries what was set for the sweep ({said}): leave out what should not be.")
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
    keys, seeds = (map(short, ranked[0].point), ranked[0].aps) if ranked else ((), ())
    heads = ("trial", *keys, "mean AP", "sd", *(f"seed {seed}" for seed in seeds), "in the search")
    rows: list[tuple[str, ...]] = []
    for it in ranked:
        aps = (written(ap, digits=4) for ap in (it.mean, it.spread, *it.aps.values(), it.search_ap))
        rows.append((it.name, *(f"{value:g}" for value in it.point.values()), *aps))
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
    """Draw AP against each searched weight as PNG and SVG; return their paths, and an ``<svg>`` for the page."""
    from matplotlib.ticker import NullFormatter, NullLocator

    seen = [trial for trial in trials if trial.ap is not None]
    with figure_style():
        figure = new_figure(300 * len(space) + 230, 360)
        figure.suptitle(f"{name}: AP on the tuning split", fontsize=12, color=INK)
        panels = figure.subplots(1, len(space), squeeze=False)[0]
        for axes, (key, parameter) in zip(panels, space.items(), strict=True):
            done = sorted((trial.point[key], trial.ap or 0.0) for trial in seen if trial.state == "finished")
            others = [(trial.point[key], trial.ap or 0.0) for trial in seen if trial.state != "finished"]
            label, form = "every step done", "o-" if len(space) == 1 else "o"
            axes.plot([x for x, _ in done], [y for _, y in done], form, color=_FINISHED, label=label, linewidth=1.3)
            if others:
                label = "stopped early: the last AP, on a subset"
                axes.plot([x for x, _ in others], [y for _, y in others], "x", color=SOFT, label=label)
            for winner in ranked:
                if winner.aps and winner.mean is not None:
                    label = "further seeds: mean and standard deviation" if winner is ranked[0] else None
                    at = [winner.point[key]], [winner.mean]
                    axes.errorbar(*at, yerr=winner.spread, fmt="D", color=_CHOSEN, capsize=4, label=label)
            axes.grid(visible=True)
            axes.set_xscale(parameter.scale)
            if parameter.values is not None:
                axes.xaxis.set_ticks([float(value) for value in parameter.values])
                axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter("{:g}".format)  # 0.1, and not a power of ten
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_label_text(short(key) + (", log scale" if parameter.scale == "log" else ""))
        panels[0].set_ylabel("AP, constrained decoding")
        panels[0].legend(fontsize=9)
        for axes in panels if not seen else ():
            axes.text(0.5, 0.5, "no AP yet", ha="center", va="center", transform=axes.transAxes, color=SOFT)
        paths = save_figure(figure, output / "response")
        return paths, inline_svg(figure, label="AP against the searched weights; the same numbers are in the tables")


def short(key: str) -> str:
    """Return ``lambda_coord`` of ``objective.lambda_coord``."""
    return key.rpartition(".")[2]
