"""A study on one screen: the verdict, a row for each group, the pairs, warnings, and where the rest is."""

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.cells import cell_len, set_cell_size

from coordexp.errors import counted
from coordexp.report.study.study import Study, better_first
from coordexp.report.text.notes import clipping_note, engine_notes, mlflow_ui, remarks, sample_notes, summary
from coordexp.report.text.study_tables import verdict_of
from coordexp.report.text.tables import UNDEFINED, aligned, mean_of, pair_name, with_interval, written
from coordexp.statistics.results import Comparison
from coordexp.statistics.verdict import p_value

MAX_WIDTH = 100
_MAX_GROUPS, _MAX_PAIRS, _MAX_WARNINGS, _VERDICT_LINES = 12, 5, 4, 4
_MAX_NAME = 24  # letters of a group's name
_NUMBERS = re.compile(r" \((?:95 % interval|p )[^()]*\)")  # of the verdict: they stand in the table of pairs


def screen_lines(study: Study, *, page: Path, again: str, width: int) -> list[str]:
    """Return at most 40 lines of at most 100 letters, but for paths and commands, which are never cut."""
    study, width = better_first(study), min(width, MAX_WIDTH)
    lines = textwrap.wrap(f"{study.data.title}: {summary(study.data)}", width, max_lines=2, placeholder=" ...")
    if study.verdict:
        sentence = _NUMBERS.sub("", study.verdict)
        lines += ["", *textwrap.wrap(sentence, width, max_lines=_VERDICT_LINES, placeholder=" ...")]
    if study.comparison is not None:
        lines += ["", *_groups(study, study.comparison), *_pairs(study.comparison)]
    if not study.data.trained:  # files of anybody: which engine wrote them is not ours to know
        for sentence in engine_notes(study.data):
            if not sentence.startswith("CAUTION: "):
                lines += ["", *textwrap.wrap(sentence, width)]
    if found := warnings(study):
        left = len(found) - _MAX_WARNINGS
        lines += ["", *(f"! {line}" for line in found[:_MAX_WARNINGS]), *([f"! {left} more"] if left > 0 else [])]
    lines = [line if cell_len(line) <= width else f"{set_cell_size(line, width - 4).rstrip()} ..." for line in lines]
    lines += ["", f"page:        {page}", f"all tables:  {again}"]
    return [*lines, "all curves:  " + mlflow_ui(study.data).replace("\n", "  ")] if study.data.trained else lines


def warnings(study: Study) -> list[str]:
    """Return what changes what one would believe, one sentence each, the gravest first."""
    data, fairness, lines = study.data, study.fairness, list[str]()
    if fairness is not None and not fairness.comparable:
        lines.append(f"the runs differ in more than the declared factor: {', '.join(fairness.undeclared)}")
    if fairness is not None and fairness.rounding:
        lines.append(f"last digits may differ by {', '.join(fairness.rounding)}")
    lines += [*study.missing, *remarks(data)]  # the verdict begins with the study's cautions
    lines += [line.removeprefix("CAUTION: ") for line in engine_notes(data) if line.startswith("CAUTION: ")]
    lines += [line.removeprefix("WARNING: ") for line in clipping_note(data)]
    lines += sample_notes(study.comparison) if study.comparison is not None else []
    lines += [f"{run.name}: {run.message}" for run in data.trained if run.state == "finished" and run.message]
    return list(dict.fromkeys([*lines, *data.others]))


def _groups(study: Study, comparison: Comparison) -> list[str]:
    rows: list[Sequence[str]] = []
    shown = sorted(comparison.groups, key=lambda group: -comparison.value[group].value)[:_MAX_GROUPS]
    for group in shown:
        runs = [run for run in study.data.groups[group] if run.seed in comparison.seeds[group]]
        others = [mean_of([run.own("constrained", name) for run in runs]) for name in ("AP50", "AP75")]
        free = mean_of([run.own("free", comparison.metric) for run in runs])
        rest = map(written, (*others, free))
        rows.append((_short(group), str(len(comparison.seeds[group])), *with_interval(comparison.value[group]), *rest))
    lines = [("group", "seeds", comparison.metric, "95 % interval", "AP50", "AP75", "free AP"), *rows]
    if all(row[-1] == UNDEFINED for row in rows):
        lines = [line[:-1] for line in lines]
    left = len(comparison.groups) - len(shown)
    return [*aligned(lines), *([f"{counted(left, 'more group')} on the page"] if left else [])]


def _pairs(comparison: Comparison) -> list[str]:
    if not comparison.pairs:
        return []
    lines: list[Sequence[str]] = [("pair", "difference", "95 % interval", "p", "verdict")]
    for pair in comparison.pairs[:_MAX_PAIRS]:
        name = " ".join(_short(part) for part in pair_name(pair).split(" "))
        difference = with_interval(pair.difference, signed=True)
        lines.append((name, *difference, p_value(pair.p_holm), _short(verdict_of(pair, comparison))))
    left = len(comparison.pairs) - _MAX_PAIRS
    return ["", *aligned(lines), *([f"{counted(left, 'more pair')} on the page"] if left > 0 else [])]


def _short(name: str) -> str:
    return name if cell_len(name) <= _MAX_NAME else set_cell_size(name, _MAX_NAME - 3) + "..."
