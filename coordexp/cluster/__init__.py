"""Runs on Ray: session, executor, drivers, workers, live metrics and evaluation. No other package imports ray."""
