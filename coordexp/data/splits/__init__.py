"""Splits: what a run uses of one, how one is divided, and pictures that stand on both sides."""
