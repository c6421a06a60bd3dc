"""Coordinate tokens added to a checkpoint."""
