"""A picture at the foot of a terminal that changes in place, and that leaves the terminal to a debugger."""

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
    """Return whether a picture can change in place: in a terminal, in the foreground, and without a debugger.

    FORCE_COLOR, which CI sets, makes rich take a file for a terminal. So the file itself is asked as well.
    """
    is_terminal = console.is_terminal and not console.is_dumb_terminal and console.file.isatty()
    # A debugger talks to the person in the same terminal. The picture would be drawn over what it prints.
    is_debugged = sys.gettrace() is not None
    return is_terminal and not is_debugged and _is_in_foreground(console.file)


def _is_in_foreground(file: IO[str]) -> bool:
    """Return whether this command has the terminal: after ``command &`` the shell has it."""
    try:
        return os.tcgetpgrp(file.fileno()) == os.getpgrp()
    except OSError:  # a terminal without process groups, so nobody else has it
        return True


class Picture:
    """A picture below everything that is printed, until it is closed.

    While it is open, rich replaces ``sys.stdout`` and ``sys.stderr``, so that lines appear above the picture. Debuggers
    and forked processes need the plain streams: ``breakpoint()`` closes the picture before the debugger asks, and a
    fork gives the child the streams that its parent had before.
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
            console: the terminal.
            draw: returns the picture; None: :meth:`show` is called with each picture.
            per_second: how often ``draw`` is called, in a thread of rich; None: never.
            stays: leave the last picture in the terminal when it is closed.
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
            # A stream that goes into a file or a pipe must not be drawn into the terminal.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self.is_open = False

    def open(self) -> None:
        """Show the picture from now on."""
        with self._lock:
            self.is_open = True
            _open_pictures.append(self)
            sys.breakpointhook = self._on_breakpoint
            self._live.start()

    def show(self, renderable: RenderableType) -> None:
        """Show another picture; after :meth:`close` nothing happens."""
        with self._lock:
            if self.is_open:
                self._live.update(renderable, refresh=True)

    def close(self) -> None:
        """Give the terminal back; a second call does nothing."""
        with self._lock:
            if not self.is_open:
                return
            self.is_open = False
            _open_pictures.remove(self)
            sys.breakpointhook = self._hook_before
            self._live.stop()

    def release_streams(self) -> None:
        """Give a forked process the plain streams.

        A thread of the parent may have held the picture's lock during the fork. Nobody would ever release its copy in
        the child, and the first print would wait for it.
        """
        self.is_open = False
        sys.stdout, sys.stderr = self._streams

    def _on_breakpoint(self, *args: object, **kwargs: object) -> object:
        """Close the picture, then stop where ``breakpoint()`` was written, as Python itself would.

        Python's own hook would stop in this method, because this method calls it. So pdb is given the frame above.
        Another debugger's hook is called as it is.
        """
        self.close()
        frame = inspect.currentframe()
        is_pythons_hook = self._hook_before is sys.__breakpointhook__ and not os.environ.get("PYTHONBREAKPOINT")
        if not is_pythons_hook or args or kwargs or frame is None:
            return self._hook_before(*args, **kwargs)
        # This must be the last statement: pdb stops at the next line, and after it that is the caller's.
        return pdb.Pdb().set_trace(frame.f_back)


_open_pictures: list[Picture] = []


def close_pictures() -> None:
    """Close every picture of this process, before a debugger asks in its terminal."""
    for picture in list(_open_pictures):
        picture.close()


def _release_streams_of_child() -> None:
    for picture in _open_pictures:
        picture.release_streams()
    _open_pictures.clear()


os.register_at_fork(after_in_child=_release_streams_of_child)
