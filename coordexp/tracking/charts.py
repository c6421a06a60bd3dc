"""What a person sees of an experiment on MLflow's own pages: metrics under names that make few sections, and one view.

MLflow draws a chart for each name and a section for what stands before a name's last slash. A run logs some hundred
numbers; those that a person compares are charts, the last value of every one is the artifact ``measured.json``.
"""

import json
from collections.abc import Iterable, Mapping

from coordexp.metrics import AP_NAMES, BEST, BOX_KINDS, LOSS_NAMES, MetricName

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

_ANSWERS = ("num_objects", "malformed_fraction", "truncated_fraction", "empty_images", "coord_mass")
_TRAINING = (
    "learning_rate", "grad_norm", "clipped_fraction", "alarms", "epoch", "num_images", "num_supervised_tokens",
)  # fmt: skip
_SPEED = {
    "throughput/images_per_second": "images_per_second",
    "throughput/tokens_per_second": "tokens_per_second",
    "throughput/data_wait_fraction": "data_wait_fraction",
    "throughput/mfu": "mfu",
    "final/train_seconds": "train_seconds",
    "final/seconds": "seconds",
    "constrained/images_per_second": "generated_images_per_second",
}
_AS_LOGGED = (
    *(f"{phase}_{name}" for phase in ("train", "eval") for name in LOSS_NAMES),  # the specification's names
    "coord_diag/",
    "eval_coord_diag/",
    "train_extra/",
    "eval_extra/",
)
_PREFIXES = {"grad_norm/": "training/grad_norm_of_", "comparison/": "comparison/"}


def _charts() -> dict[str, str]:
    """Return the chart of each metric that has one name."""
    found = {"codec_ceiling/AP": "AP/codec_ceiling", f"{BEST}eval_total_loss": "training/best_eval_total_loss"}
    for boxes in BOX_KINDS:
        for name in AP_NAMES:
            bucket = name.removeprefix("AP").removeprefix("_")  # "", "50", "small"
            found[str(MetricName("constrained", name, boxes))] = f"AP/{boxes}_{bucket}".removesuffix("_")
        found[str(MetricName("free", "AP", boxes))] = f"AP/free_{boxes}"
        subset = str(MetricName("constrained", "AP", boxes, subset=True))
        found |= {subset: f"AP/subset_{boxes}", BEST + subset: f"AP/subset_best_{boxes}"}
    for name in _ANSWERS:
        found[str(MetricName("constrained", name))] = f"answers/{name}"
        found[str(MetricName("free", name))] = f"answers/free_{name}"
    found |= {name: f"training/{name}" for name in _TRAINING}
    return found | {name: f"speed/{shown}" for name, shown in _SPEED.items()}


_CHARTS = _charts()
_LOGGED = {chart: name for name, chart in _CHARTS.items()}


def chart_of(name: str) -> str | None:
    """Return under which name MLflow shows a metric; None for one that only ``measured.json`` has."""
    if name in _CHARTS or name.startswith(_AS_LOGGED):
        return _CHARTS.get(name, name)
    for prefix, shown in _PREFIXES.items():
        if name.startswith(prefix):
            return shown + "_".join(name.removeprefix(prefix).rsplit("/", 1))
    return None


def logged(shown: Mapping[str, float]) -> dict[str, float]:
    """Return a run's metrics as MLflow has them under the names they were logged by."""
    found: dict[str, float] = {}
    gradient = _PREFIXES["grad_norm/"]
    for chart, value in shown.items():
        name = f"grad_norm/{chart.removeprefix(gradient)}" if chart.startswith(gradient) else chart
        found[_LOGGED.get(chart, name)] = value
    return found


def group_colors(groups: Iterable[str]) -> dict[str, str]:
    """Return the colour of each group of an experiment."""
    return {group: GROUP_COLORS[at % len(GROUP_COLORS)] for at, group in enumerate(sorted(set(groups)))}


def view_of_runs(now_ms: int) -> str:
    """Return the saved view of an experiment's runs, best AP first, with the columns that a person compares.

    Without it MLflow shows one closed line, the ablation's own, and no metric.

    Args:
        now_ms: when it was saved, which MLflow wants to know.
    """
    columns = [
        *(f"metrics.`{name}`" for name in ("AP/expected", "AP/argmax", "AP/free_expected", "AP/expected_50")),
        *(f"metrics.`{name}`" for name in ("answers/num_objects", "answers/malformed_fraction")),
        *(f"metrics.`{name}`" for name in ("train_total_loss", "speed/images_per_second", "speed/seconds")),
        "tags.`group`",
        "tags.`reading`",
        "attributes.`Models`",
    ]
    state = {
        "searchFilter": "tags.seed LIKE '%'",  # the runs, not the ablation above them
        "orderByKey": "metrics.`AP/expected`",
        "orderByAsc": False,
        "selectedColumns": columns,
        "runsHiddenMode": "FIRST_20_RUNS",
    }
    view = {"name": "Runs by AP", "createdAt": now_ms, "updatedAt": now_ms, "state": json.dumps(state)}
    return json.dumps(view)


def runs_address(experiment_id: str) -> str:
    """Return where MLflow's pages show an experiment's runs, after the address of the server."""
    return f"#/experiments/{experiment_id}/runs?workflowType=machine_learning&viewStateShareKey={VIEW}"
