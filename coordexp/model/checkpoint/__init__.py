"""Checkpoints on disk. Whatever is missing, damaged or of another model is a CheckpointError."""
