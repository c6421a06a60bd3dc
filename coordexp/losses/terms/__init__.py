"""The loss terms."""
