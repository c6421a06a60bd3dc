"""Samples to batches."""
