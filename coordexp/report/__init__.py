"""Reports on what MLflow holds: what the runs say, with intervals, as tables, plots and one HTML page."""
