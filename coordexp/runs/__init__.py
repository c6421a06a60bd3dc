"""A run on disk, and how it ends."""
