"""Prints an examination, as a table or as JSON."""

import json

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coordexp.doctor.examine import Examination
from coordexp.doctor.memory import MemoryEstimate
from coordexp.findings import Verdict, size_text

_STYLES: dict[Verdict, str] = {"ok": "green", "warning": "yellow", "failure": "bold red"}


def show(found: Examination, console: Console) -> None:
    """Print one line a check, the memory summand by summand, and the verdict."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what", overflow="fold")
    for finding in found.findings:
        table.add_row(
            Text(finding.check), Text(finding.verdict, style=_STYLES[finding.verdict]), Text(finding.sentence)
        )
    console.print(table)
    if found.longest_batch is not None:
        sequence = found.longest_batch.sequence
        tokens = f"{sequence.length} tokens, {sequence.prompt} of them prompt"
        console.print(
            f"memory of one worker whose batches are all of the longest sequence ({tokens}):", highlight=False
        )
        console.print(_memory_table(found.longest_batch.memory))
    console.print(_verdict(found), style=_STYLES["ok" if found.would_start else "failure"], highlight=False)


def as_json(found: Examination) -> str:
    """Return the examination as JSON."""
    memory = None if found.longest_batch is None else found.longest_batch.memory
    return json.dumps(
        {
            "would_start": found.would_start,
            "findings": [
                {"check": finding.check, "verdict": finding.verdict, "sentence": finding.sentence}
                for finding in found.findings
            ],
            "memory": {}
            if memory is None
            else {
                name: {"bytes": memory.totals[name], "summands": dict(memory.phases[name])} for name in memory.phases
            },
            "longest_sequence": None if found.longest_batch is None else vars(found.longest_batch.sequence),
        },
        indent=2,
    )


def _memory_table(memory: MemoryEstimate) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("part", no_wrap=True)
    for phase in memory.phases:
        table.add_column(phase, justify="right", no_wrap=True)
    every = memory.phases.values()
    for name in dict.fromkeys(name for parts in every for name in parts):
        if any(parts.get(name) for parts in every):
            table.add_row(name, *(size_text(parts[name]) if name in parts else "" for parts in every))
    table.add_section()
    table.add_row("together", *(size_text(total) for total in memory.totals.values()))
    return table


def _verdict(found: Examination) -> str:
    failures = sum(finding.verdict == "failure" for finding in found.findings)
    warnings = sum(finding.verdict == "warning" for finding in found.findings)
    noted = f" ({warnings} {'warning' if warnings == 1 else 'warnings'})" if warnings else ""
    if failures:
        return f"a run would not start: {failures} {'failure' if failures == 1 else 'failures'}{noted}"
    return f"a run would start{noted}"
