"""``coordexp new``: what an idea begins with: a loss or a group with its test, an experiment on one's own data."""
