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
_MAX_GROUPS = 12
_MAX_PAIRS = 5
_MAX_WARNINGS = 4
_MAX_VERDICT = 400  # letters
_MAX_NAME = 24  # letters of a group's name, fewer where the terminal is narrow
_FEWEST_COLUMNS = 3  # of a table: the name, the value and its interval
_NUMBERS = re.compile(r" \((?:95 % interval|p )[^()]*\)")  # of the verdict: they stand in the table of pairs
_SENTENCE_END = re.compile(r"(?<=\.) (?=[A-Z])")


def screen_lines(study: Study, *, page: Path, again: str, width: int) -> list[str]:
    """Return a study in about 40 lines of at most 100 letters.

    No sentence is cut: what does not fit is left out whole and counted. Paths and commands are never cut either, so
    that they can be copied; a line of one long word may be wider than the terminal.
    """
    study = better_first(study)
    width = min(width, MAX_WIDTH)
    lines = textwrap.wrap(f"{study.data.title}: {study_summary(study)}", width, max_lines=2, placeholder=" ...")
    if study.verdict:
        lines += ["", *wrapped(_whole_sentences(_NUMBERS.sub("", study.verdict)), width)]
    if study.comparison is not None:
        lines.append("")
        for line in (*_groups(study, study.comparison, width), *_pairs(study.comparison, width)):
            lines.append(line if cell_len(line) <= width else f"{set_cell_size(line, width - 4)} ...")
    if not study.data.trained:  # files of anybody: which engine wrote them is not ours to know
        for sentence in engine_notes(study.data):
            if not sentence.startswith("CAUTION: "):
                lines += ["", *wrapped(sentence, width)]
    last_lines = ["", f"page:        {page}", f"all tables:  {again}"]
    for listed_part, shown in rendered_parts(study):
        if shown.on_screen:
            last_lines.append(f"{listed_part.name + ':':<13}{shown.on_screen}")
    if study.data.trained:
        last_lines.append("all curves:  " + mlflow_ui(study.data).replace("\n", "  "))
    room = _MAX_LINES - len(lines) - len(last_lines)
    return [*lines, *_warning_lines(warnings(study), width, room=room), *last_lines]


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


def _warning_lines(sentences: Sequence[str], width: int, *, room: int) -> list[str]:
    """Return the gravest warnings whole, as many as there is room for and at least one, and how many more there are."""
    lines: list[str] = []
    num_shown = 0
    for sentence in sentences[:_MAX_WARNINGS]:
        block = wrapped(sentence, width, first="! ", others="  ")
        if num_shown and len(lines) + len(block) + 2 > room:  # a blank line, and the count
            break
        lines += block
        num_shown += 1
    if len(sentences) > num_shown:
        lines.append(f"! {len(sentences) - num_shown} more on the page")
    return ["", *lines] if lines else []


def warnings(study: Study) -> list[str]:
    """Return what changes what one would believe, one sentence each, the gravest first."""
    data, fairness = study.data, study.fairness
    sentences: list[str] = []
    if fairness is not None and not fairness.comparable:
        sentences.append(f"the runs differ in more than the declared factor: {', '.join(fairness.undeclared)}")
    if fairness is not None and fairness.rounding:
        sentences.append(f"last digits may differ by {', '.join(fairness.rounding)}")
    if study.units is not None:
        sentences += study.units.remarks
    sentences += [*study.missing, *remarks(data)]  # the verdict begins with the study's cautions
    sentences += _marked("CAUTION: ", engine_notes(data))
    sentences += _marked("WARNING: ", [*clipping_note(data), *limit_notes(data)])
    if study.comparison is not None:
        sentences += sample_notes(study.comparison)
    sentences += [f"{run.name}: {run.message}" for run in data.trained if run.state == "finished" and run.message]
    return list(dict.fromkeys([*sentences, *data.others]))


def _marked(mark: str, sentences: Sequence[str]) -> list[str]:
    """Return the sentences that begin with a mark, without it."""
    return [sentence.removeprefix(mark) for sentence in sentences if sentence.startswith(mark)]


def _groups(study: Study, comparison: Comparison, width: int) -> list[str]:
    """Return a line for each group, the highest first."""
    shown_groups = sorted(comparison.groups, key=lambda group: -comparison.value[group].value)[:_MAX_GROUPS]
    rows: list[list[str]] = []
    for group in shown_groups:
        runs = [run for run in study.data.groups[group] if run.seed in comparison.seeds[group]]
        constrained = [mean_of([run.own("constrained", name) for run in runs]) for name in ("AP50", "AP75")]
        free = mean_of([run.own("free", comparison.metric) for run in runs])
        lead = [_short(group, width), str(len(comparison.seeds[group])), *with_interval(comparison.value[group])]
        rows.append([*lead, *map(written, (*constrained, free))])
    heads = ["group", "seeds", comparison.metric, "95 % interval", "AP50", "AP75", "free AP"]
    table = [heads, *rows]
    if all(row[-1] == UNDEFINED for row in rows):  # no run was evaluated under free decoding
        table = [line[:-1] for line in table]
    lines = _fitting(table, width)
    num_left = len(comparison.groups) - len(shown_groups)
    if num_left:
        lines.append(f"{counted(num_left, 'more group')} on the page")
    return lines


def _pairs(comparison: Comparison, width: int) -> list[str]:
    """Return a line for each pair, below a blank one; nothing for one group."""
    if not comparison.pairs:
        return []
    table: list[Sequence[str]] = [("pair", "difference", "95 % interval", "p", "verdict")]
    for pair in comparison.pairs[:_MAX_PAIRS]:
        name = " ".join(_short(word, width) for word in pair_name(pair).split(" "))
        difference = with_interval(pair.difference, signed=True)
        table.append((name, *difference, p_value(pair.p_holm), _short(verdict_of(pair, comparison), MAX_WIDTH)))
    lines = ["", *_fitting(table, width)]
    num_left = len(comparison.pairs) - _MAX_PAIRS
    if num_left > 0:
        lines.append(f"{counted(num_left, 'more pair')} on the page")
    return lines


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
