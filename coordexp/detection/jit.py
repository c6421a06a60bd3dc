"""Compiled functions: numba without the interpreter's lock, cached on disk where a place can be written."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call.

    The machine code is kept beside the source, else in the user's cache folder. An installation
    where neither can be written (a read-only image, no home) compiles in each process instead.
    """
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba's word for "no place for a cache"
        return numba.njit(nogil=True)(function)
