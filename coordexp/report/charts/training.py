"""Charts of training: AP on the subset, losses, and gradient norms over steps."""

from collections.abc import Callable
from statistics import fmean

from coordexp.metrics import loss_head, subset_headline
from coordexp.report.charts.panels import Line, Point, line_chart, looks_of
from coordexp.report.figures import NEUTRAL, Chart
from coordexp.report.records.data import ExperimentData, RunRecord
from coordexp.report.study.study import Study
from coordexp.statistics.results import Convergence, CurvePoint

LOSS_TITLES = {
    "total_loss": "Total loss (other terms in every group)",
    "text_loss": "Text cross-entropy",
    "coord_loss": "Geometric loss of expected boxes",
    "coord_ce_loss": "Cross-entropy of coord tokens",
}
_STEP = "optimizer step"
_AP_TITLE = "AP on the subset"
_BANDS = "Bands: lowest and highest seed."


def ap_charts(study: Study) -> list[Chart]:
    """Return AP by each group's reading over steps, images and tokens, with bands where there are intervals."""
    if not study.data.trained:
        return []
    stars = _final_stars(study.data)
    stars_note = " Stars: all validation images, at the end." if stars else ""
    if study.convergence is None:
        means = _mean_lines(study.data, lambda run: subset_headline(run.reading))
        lines = [line._replace(marked=True) for line in means]
        return [line_chart(_AP_TITLE, [*lines, *stars], x=_STEP, y="AP", note=f"{_BANDS}{stars_note}")]

    note = f"Bands: 95 % intervals over images and seeds.{stars_note}"
    over_steps = _curves_over(study.data, study.convergence, lambda point: point.step)
    charts = [line_chart(_AP_TITLE, [*over_steps, *stars], x=_STEP, y="AP", note=note)]
    over_images = _curves_over(study.data, study.convergence, lambda point: point.num_images)
    over_tokens = _curves_over(study.data, study.convergence, lambda point: point.num_supervised_tokens)
    for words, lines in (("images", over_images), ("supervised tokens", over_tokens)):
        if lines:
            charts.append(line_chart(f"The same over {words}", lines, x=words, y="AP"))
    return charts


def loss_charts(study: Study) -> list[Chart]:
    """Return the losses in training, as lines, and on validation images, as marks."""
    if not study.data.trained:
        return []
    is_one_group = len(study.data.groups) == 1
    charts: list[Chart] = []
    for name in study.data.loss_names:
        lines = _mean_lines(study.data, lambda _, name=name: f"train_{name}")
        validation: list[Line] = []
        for line in _mean_lines(study.data, lambda _, name=name: f"eval_{name}"):
            points = [Point(point.x, point.y) for point in line.points]
            look = line.look._replace(line="none")
            validation.append(Line(f"{line.label}, validation", look, points, marked=True))
        title = LOSS_TITLES.get(name, f"Loss term {loss_head(name)}")
        if is_one_group:
            title = title.partition(" (")[0]
        has_bands = any(point.low is not None for line in lines for point in line.points)
        note = f"Means over seeds. {_BANDS}" if has_bands else ""
        charts.append(line_chart(title, [*lines, *validation], x=_STEP, y="loss", bottom=None, note=note))
    return charts


def gradient_charts(study: Study) -> list[Chart]:
    """Return the norm of gradients before clipping, with the limit if all runs have the same one."""
    lines = _mean_lines(study.data, lambda _: "grad_norm")
    if not lines:
        return []
    limits = {run.number("training.max_grad_norm") for run in study.data.runs}
    limit = limits.pop() if len(limits) == 1 else None
    if limit is not None:
        last_step = max(point.x for line in lines for point in line.points)
        lines.append(Line("limit", NEUTRAL, [Point(0.0, limit), Point(last_step, limit)]))
    note = "Above the limit a step is scaled down to it."
    return [line_chart("Gradient norm before clipping", lines, x=_STEP, y="norm", note=note)]


def _final_stars(data: ExperimentData) -> list[Line]:
    """Return a star for each group: AP on all validation images at the end, mean over seeds."""
    looks = looks_of(data)
    stars: list[Line] = []
    for group, runs in data.groups.items():
        evaluated = [run for run in runs if run.headline in run.metrics and run.foreign is None]
        if evaluated:
            last_step = max(run.step for run in evaluated)
            mean_ap = fmean(run.metrics[run.headline] for run in evaluated)
            look = looks[group]._replace(marker="*")
            stars.append(Line(f"{group}, all images", look, [Point(last_step, mean_ap)]))
    return stars


def _curves_over(
    data: ExperimentData, convergence: Convergence, consumed_at: Callable[[CurvePoint], float | None]
) -> list[Line]:
    """Return AP of each group over what it had consumed at each point; points where that is not known are left out."""
    looks = looks_of(data)
    lines: list[Line] = []
    for group, curve in convergence.curves.items():
        points: list[Point] = []
        for point in curve:
            x = consumed_at(point)
            if x is not None:
                points.append(Point(x, point.metric.value, point.metric.low, point.metric.high))
        if points:
            lines.append(Line(group, looks[group], points, marked=True))
    return lines


def _mean_lines(data: ExperimentData, name_of: Callable[[RunRecord], str]) -> list[Line]:
    """Return for each group the mean of a curve over seeds at each step, with the lowest and highest as band."""
    looks = looks_of(data)
    lines: list[Line] = []
    for group, runs in data.groups.items():
        values_by_step: dict[int, list[float]] = {}
        for run in runs:
            for point in run.curves.get(name_of(run), ()):
                values_by_step.setdefault(point.step, []).append(point.value)
        has_band = any(len(values) > 1 for values in values_by_step.values())
        points: list[Point] = []
        for step, values in sorted(values_by_step.items()):
            band = (min(values), max(values)) if has_band else ()
            points.append(Point(step, fmean(values), *band))
        if points:
            lines.append(Line(group, looks[group], points))
    return lines
