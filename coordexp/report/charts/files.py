"""The charts of a study as PNG and SVG, for papers and slides."""

from pathlib import Path

from coordexp.report.charts.boxes import calibration_charts, iou_charts, slot_charts
from coordexp.report.charts.comparing import forest_charts, group_charts
from coordexp.report.charts.panels import looks_of
from coordexp.report.charts.training import ap_charts, loss_charts
from coordexp.report.figures import Look, write_charts
from coordexp.report.study.study import Study, better_first, rendered_parts


def write_plots(study: Study, output: Path) -> list[Path]:
    """Write the charts that there is data for into a folder, and return the paths of the files."""
    study = better_first(study)
    name = study.data.name
    looks = looks_of(study.data)
    no_legend: dict[str, Look] = {}  # rows say which group they are of
    of_parts = [(listed_part.name, name, shown.charts, shown.looks) for listed_part, shown in rendered_parts(study)]
    figures = (
        ("losses", f"{name}: lines in training, marks on validation images", loss_charts(study), looks),
        ("ap", f"{name}: each group by its own reading, constrained decoding", ap_charts(study), looks),
        ("groups", name, group_charts(study), no_legend),
        ("differences", name, forest_charts(study), no_legend),
        ("slots", f"{name}: coordinates on validation images, mean over seeds", slot_charts(study), looks),
        *of_parts,
        ("iou", name, iou_charts(study), looks),
        ("calibration", name, calibration_charts(study), looks),
    )
    paths: list[Path] = []
    for stem, title, charts, legend in figures:
        if charts:
            paths += write_charts(charts, output / stem, title=title, looks=legend)
    return paths
