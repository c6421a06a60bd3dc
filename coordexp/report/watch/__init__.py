"""Runs, live."""
