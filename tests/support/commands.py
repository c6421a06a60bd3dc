"""The console blocks of the documents: what they say, and whether an output is the one that a page prints."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [
        *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "dashboards/README.md")),
        ROOT / "ray_jobs" / "kuberay" / "README.md",
        *(ROOT / "docs").glob("*.md"),
    ]
)

_BLOCK = re.compile(r"(?:^<!-- (not run|run slowly): ([^\n]+) -->\n)?^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PROGRAM = re.compile(r"^(?:\.venv/bin/)?(?:python -m )?coordexp(?=[ .]|$)")


@dataclass(frozen=True)
class Command:
    """One command of a page.

    Attributes:
        words: as a shell splits them, without its comment.
        output: lines that the page prints under it; "..." stands for some that it leaves out.
    """

    words: tuple[str, ...]
    output: tuple[str, ...] = ()

    @property
    def argv(self) -> list[str] | None:
        """What our own program gets, without "..."; None for other programs."""
        line = shlex.join([word for word in self.words if word != "..."])
        if line.startswith("ray job submit "):
            line = line.partition(" -- ")[2]
        line = re.sub(r"^python ray_jobs/(\w+)\.py", r"coordexp \1", line)
        line = re.sub(r"^python -m coordexp\.report", "coordexp report", line)
        return shlex.split(_PROGRAM.sub("", line)) if _PROGRAM.match(line) else None


@dataclass(frozen=True)
class Block:
    """The console block of a page.

    Attributes:
        place: ``docs/page.md:12``.
        mark: "not run", "run slowly" or "".
        reason: why it is marked.
        commands: in their order.
    """

    place: str
    mark: str
    reason: str
    commands: tuple[Command, ...]


def blocks(path: Path) -> list[Block]:
    """Return the console blocks of a page."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(
            f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start(3)) + 1}",
            match[1] or "",
            match[2] or "",
            tuple(_commands(match[3])),
        )
        for match in _BLOCK.finditer(text)
    ]


def _commands(block: str) -> Iterator[Command]:
    """Where a line begins with "$ ", it is a command and what follows is its output; else each line is a command."""
    lines = block.replace("\\\n", " ").splitlines()
    if not block.startswith("$ "):
        yield from (Command(tuple(words)) for line in lines if (words := shlex.split(line, comments=True)))
        return
    for part in re.split(r"^\$ ", "\n".join(lines), flags=re.MULTILINE)[1:]:
        command, *output = part.splitlines()
        yield Command(tuple(shlex.split(command, comments=True)), tuple(line for line in output if line.strip()))


def lines_not_printed(expected: tuple[str, ...], output: str) -> list[str]:
    """Return the lines of a page that an output lacks, in the page's order, whatever its numbers and times are."""
    printed = iter([_without_numbers(line) for line in output.splitlines()])
    return [line for line in expected if line.strip("." + " ") and _without_numbers(line) not in printed]


def _without_numbers(line: str) -> str:
    """Return a line with every number as 0 and every run of spaces or of a rule as one."""
    line = re.sub(r"\b[0-9a-f]{12}\b", "0", line)  # a commit
    line = re.sub(r"[-\u2212+<=]? ?\d[\d,]*(\.\d+)?(e-?\d+)?", "0", line)
    return re.sub(r"─+", "─", re.sub(r"\s+", " ", line)).strip()
