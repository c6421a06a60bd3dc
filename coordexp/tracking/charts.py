"""What a person sees of an experiment on MLflow's own pages: the metrics that are compared, and one view.

MLflow draws a chart for each name. A run logs some hundred numbers; the last value of every one is the artifact
``measured.json``.
"""

import json
from collections.abc import Iterable
from urllib.parse import quote

from coordexp.metrics import AP_NAMES, MetricName

MEASURED = "measured.json"
COLOR_TAG = "mlflow.runColor"
VIEW = "coordexp"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
GROUP_COLORS = (
    "#0072b2", "#c74e00", "#008562", "#b0558c", "#9a6700", "#3679a8",
    "#555f6e", "#9c18fc", "#6c0000", "#481860", "#300090", "#541830",
)  # fmt: skip
"""Of the groups of an experiment in alphabetical order, here and in every report, on white paper.

Okabe and Ito's colours, darkened for contrast, and five far from all others with any colour vision. Twelve cannot all
be far apart: in a report those that come near each other differ in dashes and in marker.
"""
_OF_ANSWERS = ("num_objects", "malformed_fraction", "truncated_fraction", "empty_images", "coord_mass")


def is_shown(name: str) -> bool:
    """Return whether MLflow gets a metric as a curve: all but the details of an evaluation."""
    evaluated = MetricName.parse(name)
    return evaluated is None or evaluated.metric in (*AP_NAMES, *_OF_ANSWERS)


def group_colors(groups: Iterable[str]) -> dict[str, str]:
    return {group: GROUP_COLORS[at % len(GROUP_COLORS)] for at, group in enumerate(sorted(set(groups)))}


def view_of_runs(now_ms: int) -> str:
    """Return the saved view of an experiment's runs, best AP first, with the columns that a person compares.

    Without it MLflow shows one closed line, the ablation's own, and no metric. It wants to know when it was saved.
    """
    best = "metrics.`constrained/expected/AP`"
    others = (
        *("constrained/argmax/AP", "free/expected/AP", "constrained/expected/AP50", "constrained/num_objects"),
        *("constrained/malformed_fraction", "train_total_loss", "throughput/images_per_second", "final/seconds"),
    )
    state = {
        "searchFilter": "tags.seed LIKE '%'",  # the runs, not the ablation above them
        "orderByKey": best,
        "orderByAsc": False,
        "selectedColumns": [best, *(f"metrics.`{name}`" for name in others), "tags.`group`", "tags.`reading`"],
        "runsHiddenMode": "FIRST_20_RUNS",
    }
    return json.dumps({"name": "Runs by AP", "createdAt": now_ms, "updatedAt": now_ms, "state": json.dumps(state)})


def runs_address(experiment_id: str) -> str:
    """Return where MLflow's pages show an experiment's runs, after the address of the server."""
    return f"#/experiments/{quote(experiment_id, safe='')}/runs?workflowType=machine_learning&viewStateShareKey={VIEW}"
