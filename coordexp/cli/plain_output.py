"""The console that verbs print to: names steer no terminal, a closed pipe ends no work, a pipe has no width."""

import os
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment
from rich.table import Table

from coordexp.errors import plain_lines


class PlainConsole(Console, RenderHook):
    """A console that replaces the control characters of names; rich itself lets an escape through."""

    def __init__(self, *, stderr: bool = False, width: int | None = None, is_terminal: bool | None = None) -> None:
        """Print to stdout or ``stderr``; rich finds out what is None."""
        super().__init__(stderr=stderr, width=width, force_terminal=is_terminal)
        self.soft_wrap = not self.is_terminal  # a path in a pipe stays whole
        self.push_render_hook(self)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Plain(renderable) for renderable in renderables]

    def on_broken_pipe(self) -> None:
        """Go on without a reader; rich would end the process, before the rest of its work."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


@dataclass(frozen=True)
class _Plain:
    renderable: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        segments = console.render(self.renderable, options)
        if isinstance(self.renderable, Table) and not console.is_terminal:
            for line in Segment.split_lines(segments):
                yield Segment(plain_lines("".join(part.text for part in line)).rstrip() + "\n")
            return
        for segment in segments:
            if segment.control:
                yield segment
            else:
                yield Segment(plain_lines(segment.text), segment.style)
