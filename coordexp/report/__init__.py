"""Reports on what MLflow holds: tables of groups, loss curves and AP over steps."""

from coordexp.report.load import load_experiment
from coordexp.report.render import render_report
from coordexp.report.write import report_experiment

__all__ = ["load_experiment", "render_report", "report_experiment"]
