"""What was found, as a table or as JSON."""

import json

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coordexp.doctor.examine import Examination
from coordexp.doctor.finding import Verdict, size_text
from coordexp.doctor.memory import Estimate

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
    if found.memory is not None and found.sequence is not None:
        tokens = f"{found.sequence.length} tokens, {found.sequence.prompt} of them prompt"
        console.print(
            f"memory of one worker whose batches are all of the longest sequence ({tokens}):", highlight=False
        )
        console.print(_memory_table(found.memory))
    console.print(_verdict(found), style=_STYLES["ok" if found.would_start else "failure"], highlight=False)


def as_json(found: Examination) -> str:
    """Return it for machines."""
    phases = () if found.memory is None else found.memory.phases
    return json.dumps(
        {
            "would_start": found.would_start,
            "findings": [vars(finding) for finding in found.findings],
            "memory": {
                phase.name: {
                    "bytes": phase.num_bytes,
                    "summands": {summand.name: summand.num_bytes for summand in phase.summands},
                }
                for phase in phases
            },
            "longest_sequence": None if found.sequence is None else vars(found.sequence),
        },
        indent=2,
    )


def _memory_table(memory: Estimate) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("part", no_wrap=True)
    for phase in memory.phases:
        table.add_column(phase.name, justify="right", no_wrap=True)
    sizes = [{summand.name: summand.num_bytes for summand in phase.summands} for phase in memory.phases]
    for name in dict.fromkeys(name for parts in sizes for name in parts):
        if any(parts.get(name) for parts in sizes):
            table.add_row(name, *(size_text(parts[name]) if name in parts else "" for parts in sizes))
    table.add_section()
    table.add_row("together", *(size_text(phase.num_bytes) for phase in memory.phases))
    return table


def _verdict(found: Examination) -> str:
    failures = sum(finding.verdict == "failure" for finding in found.findings)
    warnings = sum(finding.verdict == "warning" for finding in found.findings)
    noted = f" ({warnings} {'warning' if warnings == 1 else 'warnings'})" if warnings else ""
    if failures:
        return f"a run would not start: {failures} {'failure' if failures == 1 else 'failures'}{noted}"
    return f"a run would start{noted}"
