"""Bounds of numbers that a user gives; the command line needs them without pydantic."""

MAX_COUNT = 2**31 - 1  # what a 32-bit index holds
MAX_SEED = 2**32 - 1  # of numpy's global generator
