"""Tuning: what was chosen for each group, what that gained where it was chosen, and what validation says of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from coordexp.config.schema.search import Parameter
from coordexp.errors import counted
from coordexp.report.charts.panels import looks_of, number
from coordexp.report.figures import INK, NEUTRAL, Chart, Look, tips
from coordexp.report.rendered import Rendered
from coordexp.report.study.inputs import Outcome, StudyInputs
from coordexp.report.study.part import Part
from coordexp.report.study.study import Study
from coordexp.report.study.tuned import edge_of, tuning_of
from coordexp.report.table import Table
from coordexp.report.text.tables import UNDEFINED, with_interval, written
from coordexp.search.point import point_text, short_key
from coordexp.search.record import LEARNED_AP, TunedGroup, TuningRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "Tuning"
_END = {"lower end": "lower", "upper end": "upper"}


def compute_tuning(inputs: StudyInputs) -> Outcome[TuningRecord | None]:
    """Read the record of the tuning; None if the groups were not tuned."""
    return Outcome(tuning_of(inputs.data, inputs.artifacts))


def render_tuning(record: TuningRecord, study: Study) -> Rendered:
    """Return what a report shows of the tuning: warnings, tables, a figure a group, and every trial for programs."""
    shown = [group for group in study.data.groups if group in record.groups]
    groups = {group: record.groups[group] for group in shown}
    warnings = edge_warnings(groups)
    chosen = "; ".join(f"{group} {point_text(tuned.best.point)}" for group, tuned in groups.items())
    num_at_edge = f" ({counted(len(warnings), 'key')} at the edge of the space)" if warnings else ""
    return Rendered(
        title=TITLE,
        sentences=(*warnings, *_sentences(record, groups)),
        charts=tuple(_charts(groups, study)),
        looks={group: look for group, look in looks_of(study.data).items() if group in groups},
        tables=(chosen_table(groups), ap_table(record, groups, study), trials_table(groups)),
        on_screen=f"{chosen}{num_at_edge}",
        record=record.model_dump(mode="json"),
    )


TUNING = Part("tuning", compute_tuning, render_tuning)


def edge_warnings(groups: Mapping[str, TunedGroup]) -> list[str]:
    """Return a sentence for each chosen value that lies at an end of what was searched, or outside of it."""
    warnings: list[str] = []
    for group, tuned in groups.items():
        for key, parameter in tuned.space.items():
            value, (low, high) = tuned.best.point[key], parameter.ends
            edge = edge_of(parameter, value)
            searched = f"{number(low)} to {number(high)}"
            if edge == "outside":
                warnings.append(
                    f"{group}: {key} {number(value)}, the group's own value, is outside of what was searched "
                    f"({searched}) and was better than all of it; search around it."
                )
            elif edge:
                warnings.append(
                    f"{group}: {key} {number(value)} lies at the {_END[edge]} edge of its space ({searched}); a wider "
                    "space may hold a better value."
                )
    return warnings


def chosen_table(groups: Mapping[str, TunedGroup]) -> Table:
    """Return a row for each tuned key of each group: its own value, the chosen one, and where that lies."""
    rows: list[tuple[str, ...]] = []
    for group, tuned in groups.items():
        for key, parameter in tuned.space.items():
            own_value = tuned.own_values.point[key]
            chosen = tuned.best.point[key]
            edge = edge_of(parameter, chosen) or UNDEFINED
            rows.append((group, key, number(own_value), number(chosen), _searched(parameter), edge))
    return Table.of(f"{TITLE}: what was chosen", ("group", "key", "own", "chosen", "searched", "edge"), rows)


def ap_table(record: TuningRecord, groups: Mapping[str, TunedGroup], study: Study) -> Table:
    """Return AP of the own values and of the chosen point on the tuning split, beside AP on validation."""
    values = {} if study.comparison is None else study.comparison.value
    rows: list[tuple[str, ...]] = []
    for group, tuned in groups.items():
        own_ap = tuned.own_values.ap
        chosen_ap = tuned.best.ap
        gain = None if own_ap is None or chosen_ap is None else chosen_ap - own_ap
        value, interval = (UNDEFINED, UNDEFINED)
        if group in values:
            value, interval = with_interval(values[group])
        rows.append((group, written(own_ap), written(chosen_ap), written(gain, signed=True), value, interval))
    heads = ("group", "AP, own values", "AP, chosen", "gain", "AP, validation", "95 % interval")
    notes = [
        f"AP of own values and of the chosen point is of trials of {counted(record.num_steps, 'step')} on the tuning "
        f"split ({record.num_val:,} training images), by which the point was chosen.",
        f"The best of {record.num_trials} is too high for its point. Validation images had no part in the choice; "
        "there the group ran at full length.",
    ]
    return Table.of(f"{TITLE}: AP where it was chosen, and on validation", heads, rows, notes)


def trials_table(groups: Mapping[str, TunedGroup]) -> Table:
    """Return a row for each trial; an AP before the last step is in parentheses."""
    rows: list[tuple[str, ...]] = []
    for group, tuned in groups.items():
        for trial in tuned.trials:
            ap = written(trial.ap, digits=4)
            if trial.state != "finished" and trial.ap is not None:
                ap = f"({ap})"
            mark = "chosen" if trial.name == tuned.chosen else ""
            rows.append((group, trial.name, point_text(trial.point), ap, str(trial.step), trial.state, mark))
    return Table.of(f"{TITLE}: trials", ("group", "trial", "point", "AP", "steps", "state", "decision"), rows)


def _sentences(record: TuningRecord, groups: Mapping[str, TunedGroup]) -> list[str]:
    units = f", whole units by {record.unit_by}" if record.unit_by else ""
    left_out = f"; {record.num_excluded:,} that validation holds too were left out" if record.num_excluded else ""
    sentences = [
        f"Each group had {counted(record.num_trials, 'trial')} of {counted(record.num_steps, 'step')} "
        f"({record.method}, seed {record.seed}), the first with its own values. They trained on {record.num_train:,} "
        f"of the training images and were judged on {record.num_val:,} others{units}{left_out}. A group with more keys "
        "searches each of them more thinly."
    ]
    without = [group for group, tuned in groups.items() if not tuned.has_learned]
    if without:
        sentences.append(
            f"No trial of {', '.join(without)} reached AP {LEARNED_AP:g}: the choice there says nothing, and trials "
            "need more steps."
        )
    unchanged_groups = [
        group for group, tuned in groups.items() if tuned.best == tuned.own_values and tuned.has_learned
    ]
    if unchanged_groups:
        sentences.append(f"No point was better than the own values of {', '.join(unchanged_groups)}.")
    failed = [trial for tuned in groups.values() for trial in tuned.failed]
    if failed:
        sentences.append(
            f"{counted(len(failed), 'trial')} failed, and counted among the trials of its group "
            f"({failed[0].name}: {failed[0].message})."
        )
    num_pruned = sum(trial.state == "pruned" for tuned in groups.values() for trial in tuned.trials)
    if num_pruned:
        sentences.append(f"{counted(num_pruned, 'trial')} stopped early, since their AP fell behind.")
    return sentences


def _searched(parameter: Parameter) -> str:
    if parameter.values is not None:
        return ", ".join(map(number, parameter.values))
    low, high = parameter.ends
    return f"{number(low)} to {number(high)}" + (" (log)" if parameter.scale == "log" else "")


@dataclass(frozen=True)
class _Response:
    """The trials of a group along one key."""

    group: str
    key: str
    parameter: Parameter
    tuned: TunedGroup
    look: Look

    def draw(self, axes: "Axes") -> None:
        """Draw AP against the key: a mark a trial, a ring around the chosen one, a line at the group's own value."""
        for trial in self.tuned.trials:
            if trial.ap is None:
                continue
            is_whole = trial.state == "finished"
            marker, color = (self.look.marker, self.look.color) if is_whole else ("x", INK)
            x = float(trial.point[self.key])
            (mark,) = axes.plot([x], [trial.ap], marker, color=color, markersize=7)
            mark.set_gid(tips(f"{trial.name}: AP {number(trial.ap)} at {point_text(trial.point)}"))
            if trial.name == self.tuned.chosen:
                axes.plot([x], [trial.ap], "o", color=INK, markersize=14, fillstyle="none")
        own_value = float(self.tuned.own_values.point[self.key])
        axes.axvline(own_value, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
        if self.parameter.scale == "log":
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{:g}".format)
        axes.grid(visible=True)
        axes.set_xlabel(short_key(self.key))
        axes.set_ylabel("AP on the tuning split")


def _charts(groups: Mapping[str, TunedGroup], study: Study) -> list[Chart]:
    looks = looks_of(study.data)
    charts: list[Chart] = []
    for group, tuned in groups.items():
        for key, parameter in tuned.space.items():
            response = _Response(group, key, parameter, tuned, looks.get(group, NEUTRAL))
            note = "A mark a trial; the ring is the chosen one, the dashed line the group's own value."
            if any(trial.state != "finished" and trial.ap is not None for trial in tuned.trials):
                note += " A cross stopped early: its last AP."
            is_empty = all(trial.ap is None for trial in tuned.trials)
            draw = None if is_empty else partial(_Response.draw, response)
            charts.append(Chart(f"{group}: response to {short_key(key)}", draw, note))
    return charts
