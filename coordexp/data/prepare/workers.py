"""An ordered map over processes: lazy, bounded, and the same results for any number of workers."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from types import TracebackType
from typing import TypeVar

from coordexp.errors import ResourceError

_TASKS_AHEAD = 2  # for each worker: enough to keep all busy, few enough to bound memory

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class Workers:
    """A pool of processes, or this process alone; a context manager.

    Processes are spawned, not forked: a fork of a process with threads (torch, a progress bar) may
    hang. What a task needs should therefore import quickly.
    """

    def __init__(self, num: int = 1) -> None:
        """Prepare ``num`` workers; 1 runs everything in this process.

        Raises:
            ValueError: if ``num`` is below 1.
        """
        if num < 1:
            raise ValueError(f"num must be at least 1, got {num}")
        self.num = num
        self._pool: ProcessPoolExecutor | None = None

    def map(self, function: Callable[[_Task], _Result], tasks: Iterable[_Task]) -> Generator[_Result]:
        """Yield ``function(task)`` in the order of ``tasks``, which are drawn when a worker needs one.

        Closing the generator drops the tasks that did not start.

        Raises:
            ResourceError: if a worker process dies.
        """
        if self._pool is None:
            yield from map(function, tasks)
            return
        source = iter(tasks)
        pending: deque[Future[_Result]] = deque()
        try:
            pending.extend(self._pool.submit(function, task) for task in islice(source, self.num * _TASKS_AHEAD))
            while pending:
                result = pending.popleft().result()
                pending.extend(self._pool.submit(function, task) for task in islice(source, 1))
                yield result
        except BrokenProcessPool:
            raise ResourceError(
                "a worker process died (was memory short?); the same command goes on from the parts that are done"
            ) from None
        finally:
            for future in pending:
                future.cancel()

    def __enter__(self) -> "Workers":
        """Start the processes."""
        if self.num > 1:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.num, mp_context=context, initializer=_follow_the_parent)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Stop the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def default_num_workers(limit: int = 8) -> int:
    """Return the number of CPUs this process may use, at most ``limit``."""
    return min(len(os.sched_getaffinity(0)), limit)


def _follow_the_parent() -> None:
    """Leave interrupts to the parent, and end when it does: a killed parent tells its pool nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None  # it runs in a worker

    def end_with_it() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_it, daemon=True).start()
