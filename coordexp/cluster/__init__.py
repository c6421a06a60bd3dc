"""Schedules groups x seeds: plans, the experiment directory, executors. The only package that imports ray."""
