"""The largest numbers that libraries take."""

MAX_COUNT = 2**31 - 1  # what a 32-bit index holds
MAX_SEED = 2**32 - 1  # of numpy's global generator
