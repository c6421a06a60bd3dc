"""A picture at the foot of a terminal that changes in place, and makes way for a debugger or a forked process."""

import inspect
import os
import pdb
import sys
import threading
from collections.abc import Callable
from typing import IO

from rich.console import Console, RenderableType
from rich.live import Live


def can_redraw(console: Console) -> bool:
    """Return whether a picture can change in place: in a terminal, in the foreground, and without a debugger."""
    # FORCE_COLOR, which CI sets, makes rich take a log file for a terminal, so the file is asked as well.
    is_terminal = console.is_terminal and not console.is_dumb_terminal and console.file.isatty()
    # A debugger prints in the same terminal, and the picture would overwrite it.
    return is_terminal and sys.gettrace() is None and _is_in_foreground(console.file)


def _is_in_foreground(file: IO[str]) -> bool:
    """Return whether this command has the terminal, and does not run in the background of a shell."""
    try:
        return os.tcgetpgrp(file.fileno()) == os.getpgrp()
    except OSError:  # not a terminal that processes share
        return True


class Picture:
    """A picture below everything that is printed, until it is closed.

    ``breakpoint()`` closes it, so that the debugger has the terminal. A forked process gets plain streams instead.
    """

    def __init__(
        self,
        console: Console,
        *,
        draw: Callable[[], RenderableType] | None = None,
        per_second: float | None = None,
        stays: bool = False,
    ) -> None:
        """Prepare a picture; :meth:`open` shows it.

        Args:
            console: of the terminal.
            draw: returns the picture; None if :meth:`show` will be called with each one.
            per_second: how often a thread of rich calls ``draw``; None if never.
            stays: whether the last picture is left on the screen after :meth:`close`.
        """
        self._lock = threading.RLock()
        self._streams = (sys.stdout, sys.stderr)
        self._hook_before = sys.breakpointhook
        self._live = Live(
            console=console,
            get_renderable=draw,
            auto_refresh=per_second is not None,
            refresh_per_second=per_second or 1.0,
            transient=not stays,
            redirect_stdout=sys.stdout.isatty(),  # output to a file or a pipe stays there
            redirect_stderr=sys.stderr.isatty(),
        )
        self.is_open = False

    def open(self) -> None:
        """Show the picture."""
        with self._lock:
            self.is_open = True
            _open_pictures.append(self)
            sys.breakpointhook = self._on_breakpoint
            self._live.start()

    def show(self, renderable: RenderableType) -> None:
        """Show another picture, unless this one was closed."""
        with self._lock:
            if self.is_open:
                self._live.update(renderable, refresh=True)

    def close(self) -> None:
        """Give the terminal back. A second call does nothing."""
        with self._lock:
            if not self.is_open:
                return
            self.is_open = False
            _open_pictures.remove(self)
            sys.breakpointhook = self._hook_before
            self._live.stop()

    def release_streams(self) -> None:
        """Restore the streams in a forked process.

        The lock of the picture may have been held when the process forked, and then nobody releases it there.
        """
        self.is_open = False
        sys.stdout, sys.stderr = self._streams

    def _on_breakpoint(self, *args: object, **kwargs: object) -> object:
        """Close the picture, then stop where ``breakpoint()`` was written, as Python itself would."""
        self.close()
        frame = inspect.currentframe()
        is_default_hook = self._hook_before is sys.__breakpointhook__ and not os.environ.get("PYTHONBREAKPOINT")
        if not is_default_hook or args or kwargs or frame is None:
            return self._hook_before(*args, **kwargs)
        # This must be the last call, because the debugger would stop in a later one.
        return pdb.Pdb().set_trace(frame.f_back)


_open_pictures: list[Picture] = []


def close_pictures() -> None:
    """Close every picture of this process, so that a debugger has the terminal."""
    for picture in list(_open_pictures):
        picture.close()


def _release_streams_of_child() -> None:
    for picture in _open_pictures:
        picture.release_streams()
    _open_pictures.clear()


os.register_at_fork(after_in_child=_release_streams_of_child)
