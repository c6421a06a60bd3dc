"""What a person sees of an experiment on MLflow's own pages: the metrics that are compared, and one saved view.

MLflow draws a chart for each metric it gets, and a run has some hundred. So MLflow gets those that are compared. The
last value of every metric is in the artifact ``measured.json``.
"""

import itertools
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
"""Colours of the groups in alphabetical order, here and in every report, on white paper.

Seven are Okabe and Ito's, darkened for contrast. The other five are as far as possible from all others with any colour
vision. Twelve colours cannot all be far apart, so in a report similar ones differ in dashes and in marker.
"""
_OF_ANSWERS = ("num_objects", "malformed_fraction", "truncated_fraction", "empty_images", "coord_mass")


def is_shown(name: str) -> bool:
    """Return whether MLflow gets a metric as a curve. It gets all but the details of an evaluation."""
    evaluated = MetricName.parse(name)
    return evaluated is None or evaluated.metric in (*AP_NAMES, *_OF_ANSWERS)


def group_colors(groups: Iterable[str]) -> dict[str, str]:
    """Return a colour for each group; with more than twelve groups colours repeat."""
    colors = itertools.cycle(GROUP_COLORS)
    return dict(zip(sorted(set(groups)), colors, strict=False))


def view_of_runs(now_ms: int) -> str:
    """Return a saved view of an experiment's runs, best AP first, with the columns that a person compares.

    Without it MLflow shows one closed line, the ablation's own, and no metric. ``now_ms`` is the time at which the view
    is saved, in milliseconds since 1970, which MLflow wants to know.
    """
    headline_column = "metrics.`constrained/expected/AP`"
    further_metrics = (
        *("constrained/argmax/AP", "free/expected/AP", "constrained/expected/AP50", "constrained/num_objects"),
        *("constrained/malformed_fraction", "train_total_loss", "throughput/images_per_second", "final/seconds"),
    )
    state = {
        "searchFilter": "tags.seed LIKE '%'",  # the runs, not the ablation above them
        "orderByKey": headline_column,
        "orderByAsc": False,
        "selectedColumns": [
            headline_column,
            *(f"metrics.`{name}`" for name in further_metrics),
            "tags.`group`",
            "tags.`reading`",
        ],
        "runsHiddenMode": "FIRST_20_RUNS",
    }
    return json.dumps({"name": "Runs by AP", "createdAt": now_ms, "updatedAt": now_ms, "state": json.dumps(state)})


def runs_address(experiment_id: str) -> str:
    """Return what follows the address of a server to show an experiment's runs on its pages."""
    return f"#/experiments/{quote(experiment_id, safe='')}/runs?workflowType=machine_learning&viewStateShareKey={VIEW}"
