"""Measurements and alarms beside the loss."""
