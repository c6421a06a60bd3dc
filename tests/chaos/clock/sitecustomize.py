"""Python imports this at its start, where its folder is on PYTHONPATH: ``time.time`` then follows a file.

The file says by how many seconds the clock is wrong. Ray's C++ keeps the true time: with a library that changes it for
all of a process (libfaketime 0.9.10) the head of Ray 2.60 did not start within four minutes.
"""

import os
import time

CLOCK = "COORDEXP_CHAOS_CLOCK"
_LOOK_SECONDS = 0.5
_true_time, _true_time_ns, _monotonic = time.time, time.time_ns, time.monotonic
_read_at, _offset = -_LOOK_SECONDS, 0


def _wrong_by() -> int:
    global _read_at, _offset
    if _monotonic() - _read_at >= _LOOK_SECONDS:
        _read_at = _monotonic()
        try:
            with open(os.environ[CLOCK]) as handle:
                _offset = int(handle.read() or 0)
        except OSError:
            _offset = 0
    return _offset


if CLOCK in os.environ:
    time.time = lambda: _true_time() + _wrong_by()
    time.time_ns = lambda: _true_time_ns() + _wrong_by() * 10**9
