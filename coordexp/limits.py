"""Bounds of numbers that a user gives. They are here because the command line reads them without pydantic."""

MAX_COUNT = 2**31 - 1  # the largest 32-bit index
MAX_SEED = 2**32 - 1  # the largest seed of numpy's global generator
