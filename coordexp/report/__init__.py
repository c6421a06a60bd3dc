"""Reports on what MLflow holds: what the runs say, with intervals, as tables, plots and one HTML page."""

from coordexp.report.study.load import load_experiment
from coordexp.report.text.render import render_report
from coordexp.report.write import report_experiment

__all__ = ["load_experiment", "render_report", "report_experiment"]
