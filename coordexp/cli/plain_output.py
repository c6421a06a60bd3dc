"""The console that verbs print to.

No name can steer the terminal, a closed pipe ends no work, and nothing that goes into a pipe is wrapped.
"""

import os
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment
from rich.table import Table

from coordexp.errors import plain_lines


class PlainConsole(Console, RenderHook):
    """A console that replaces the control characters of names; rich itself lets an escape through."""

    def __init__(self, *, stderr: bool = False, width: int | None = None, is_terminal: bool | None = None) -> None:
        """Open a console on stdout or stderr.

        Args:
            stderr: print to stderr, not to stdout.
            width: columns; None: those of the terminal.
            is_terminal: print as into a terminal; None: rich finds out.
        """
        super().__init__(stderr=stderr, width=width, force_terminal=is_terminal)
        self.soft_wrap = not self.is_terminal  # in a pipe, a path that is wrapped could not be copied
        self.push_render_hook(self)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Plain(renderable) for renderable in renderables]

    def on_broken_pipe(self) -> None:
        """Write to nowhere from now on: rich would end the process, and files that come later were not written."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


@dataclass(frozen=True)
class _Plain:
    """Something to print, in whose text control characters are replaced.

    A table in a pipe loses the spaces that rich pads its lines with, up to the console's width.
    """

    renderable: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        segments = console.render(self.renderable, options)
        if isinstance(self.renderable, Table) and not console.is_terminal:
            for line in Segment.split_lines(segments):
                text = "".join(segment.text for segment in line)
                yield Segment(plain_lines(text).rstrip() + "\n")
            return
        for segment in segments:
            if segment.control:
                yield segment
            else:
                yield Segment(plain_lines(segment.text), segment.style)
