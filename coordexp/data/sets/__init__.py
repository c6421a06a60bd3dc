"""The set of an experiment: its arrays, its record, its hashes, and what changed between two of them."""
