"""What a rich console shows has no control characters but its own: names of files and models may hold any."""

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment

from coordexp.errors import plain_lines


class PlainOutput(RenderHook):
    """Replaces them in whatever is printed; rich itself lets an escape through."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return what is printed instead."""
        return [_Plain(renderable) for renderable in renderables]


@dataclass(frozen=True)
class _Plain:
    renderable: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(plain_lines(segment.text), segment.style)
