"""A study on one screen: the verdict, a row for each group, the pairs, warnings, and where the rest is."""

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from rich.cells import cell_len, set_cell_size

from coordexp.errors import counted
from coordexp.report.study.study import Study, better_first, rendered_parts
from coordexp.report.text.limits import limit_notes
from coordexp.report.text.notes import clipping_note, engine_notes, mlflow_ui, remarks, sample_notes, study_summary
from coordexp.report.text.study_tables import verdict_of
from coordexp.report.text.tables import UNDEFINED, aligned, mean_of, pair_name, with_interval, written
from coordexp.statistics.results import Comparison
from coordexp.statistics.verdict import p_value

MAX_WIDTH = 100
_MAX_LINES = 40
_MAX_GROUPS, _MAX_PAIRS, _MAX_WARNINGS, _MAX_VERDICT = 12, 5, 4, 400
_MAX_NAME = 24  # letters of a group's name, fewer where the terminal is narrow
_FEWEST_COLUMNS = 3  # of a table: the name, the value and its interval
_NUMBERS = re.compile(r" \((?:95 % interval|p )[^()]*\)")  # of the verdict: they stand in the table of pairs
_SENTENCE_END = re.compile(r"(?<=\.) (?=[A-Z])")


def screen_lines(study: Study, *, page: Path, again: str, width: int) -> list[str]:
    """Return a study in about 40 lines of at most 100 letters.

    No sentence is cut: what does not fit is left out whole and counted. Paths and commands are never cut either, so
    that they can be copied; a line of one long word may be wider than the terminal.
    """
    study, width = better_first(study), min(width, MAX_WIDTH)
    lines = textwrap.wrap(f"{study.data.title}: {study_summary(study)}", width, max_lines=2, placeholder=" ...")
    if study.verdict:
        lines += ["", *wrapped(_whole_sentences(_NUMBERS.sub("", study.verdict)), width)]
    if study.comparison is not None:
        tables = [*_groups(study, study.comparison, width), *_pairs(study.comparison, width)]
        lines += [
            "",
            *(line if cell_len(line) <= width else f"{set_cell_size(line, width - 4)} ..." for line in tables),
        ]
    if not study.data.trained:  # files of anybody: which engine wrote them is not ours to know
        for sentence in engine_notes(study.data):
            if not sentence.startswith("CAUTION: "):
                lines += ["", *wrapped(sentence, width)]
    last = ["", f"page:        {page}", f"all tables:  {again}"]
    for part, shown in rendered_parts(study):
        if shown.on_screen:
            last.append(f"{part.name + ':':<13}{shown.on_screen}")
    if study.data.trained:
        last.append("all curves:  " + mlflow_ui(study.data).replace("\n", "  "))
    return [*lines, *_warning_lines(warnings(study), width, room=_MAX_LINES - len(lines) - len(last)), *last]


def wrapped(text: str, width: int, *, first: str = "", others: str = "") -> list[str]:
    """Break a text at its spaces into lines of at most ``width`` terminal cells; a longer word stays whole.

    ``textwrap`` counts letters, and a letter of Chinese takes two cells.
    """
    lines = [first]
    indent = cell_len(first)
    for word in text.split():
        space = " " if cell_len(lines[-1]) > indent else ""
        if space and cell_len(lines[-1]) + 1 + cell_len(word) > width:
            lines.append(others)
            indent, space = cell_len(others), ""
        lines[-1] += space + word
    return lines


def _whole_sentences(text: str) -> str:
    """Return the sentences with which a verdict begins, and that there are more where it is long."""
    sentences = _SENTENCE_END.split(text)
    shown = sentences[:1]
    for sentence in sentences[1:]:
        if len(" ".join([*shown, sentence])) > _MAX_VERDICT:
            return f"{' '.join(shown)} (More on the page.)"
        shown.append(sentence)
    return text


def _warning_lines(found: Sequence[str], width: int, *, room: int) -> list[str]:
    """Return the gravest warnings whole, as many as there is room for and at least one, and how many more there are."""
    lines: list[str] = []
    num_shown = 0
    for sentence in found[:_MAX_WARNINGS]:
        block = wrapped(sentence, width, first="! ", others="  ")
        if num_shown and len(lines) + len(block) + 2 > room:  # a blank line, and the count
            break
        lines += block
        num_shown += 1
    if len(found) > num_shown:
        lines.append(f"! {len(found) - num_shown} more on the page")
    return ["", *lines] if lines else []


def warnings(study: Study) -> list[str]:
    """Return what changes what one would believe, one sentence each, the gravest first."""
    data, fairness, lines = study.data, study.fairness, list[str]()
    if fairness is not None and not fairness.comparable:
        lines.append(f"the runs differ in more than the declared factor: {', '.join(fairness.undeclared)}")
    if fairness is not None and fairness.rounding:
        lines.append(f"last digits may differ by {', '.join(fairness.rounding)}")
    lines += [] if study.units is None else study.units.remarks
    lines += [*study.missing, *remarks(data)]  # the verdict begins with the study's cautions
    lines += [line.removeprefix("CAUTION: ") for line in engine_notes(data) if line.startswith("CAUTION: ")]
    noted = [*clipping_note(data), *limit_notes(data)]
    lines += [line.removeprefix("WARNING: ") for line in noted if line.startswith("WARNING: ")]
    lines += sample_notes(study.comparison) if study.comparison is not None else []
    lines += [f"{run.name}: {run.message}" for run in data.trained if run.state == "finished" and run.message]
    return list(dict.fromkeys([*lines, *data.others]))


def _groups(study: Study, comparison: Comparison, width: int) -> list[str]:
    rows: list[Sequence[str]] = []
    shown = sorted(comparison.groups, key=lambda group: -comparison.value[group].value)[:_MAX_GROUPS]
    for group in shown:
        runs = [run for run in study.data.groups[group] if run.seed in comparison.seeds[group]]
        others = [mean_of([run.own("constrained", name) for run in runs]) for name in ("AP50", "AP75")]
        free = mean_of([run.own("free", comparison.metric) for run in runs])
        rest = map(written, (*others, free))
        rows.append(
            (_short(group, width), str(len(comparison.seeds[group])), *with_interval(comparison.value[group]), *rest)
        )
    lines = [("group", "seeds", comparison.metric, "95 % interval", "AP50", "AP75", "free AP"), *rows]
    if all(row[-1] == UNDEFINED for row in rows):
        lines = [line[:-1] for line in lines]
    left = len(comparison.groups) - len(shown)
    return [*_fitting(lines, width), *([f"{counted(left, 'more group')} on the page"] if left else [])]


def _pairs(comparison: Comparison, width: int) -> list[str]:
    if not comparison.pairs:
        return []
    lines: list[Sequence[str]] = [("pair", "difference", "95 % interval", "p", "verdict")]
    for pair in comparison.pairs[:_MAX_PAIRS]:
        name = " ".join(_short(part, width) for part in pair_name(pair).split(" "))
        difference = with_interval(pair.difference, signed=True)
        lines.append((name, *difference, p_value(pair.p_holm), _short(verdict_of(pair, comparison), MAX_WIDTH)))
    left = len(comparison.pairs) - _MAX_PAIRS
    return ["", *_fitting(lines, width), *([f"{counted(left, 'more pair')} on the page"] if left > 0 else [])]


def _fitting(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return a table without its last columns where a terminal is too narrow for them: half a number is a wrong one."""
    lines = aligned(rows)
    while len(rows[0]) > _FEWEST_COLUMNS and max(map(cell_len, lines)) > width:
        rows = [row[:-1] for row in rows]
        lines = aligned(rows)
    return lines


def _short(name: str, width: int) -> str:
    """Return a name so short that two of them leave room for a difference and its interval."""
    most = min(_MAX_NAME, (width - 36) // 2)
    return name if cell_len(name) <= most else set_cell_size(name, most - 3) + "..."
