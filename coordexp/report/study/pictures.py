"""What a study draws of single objects: the gallery of images, and distributions of coordinates."""

from collections.abc import Sequence
from pathlib import Path

from coordexp.config.trees import value_at
from coordexp.report.records.artifacts import FINAL_CONSTRAINED
from coordexp.report.records.data import RunRecord, by_group
from coordexp.report.study.about import writes_digits
from coordexp.report.study.examples import EdgeDistributions, GalleryImage, choose_curves, make_gallery
from coordexp.report.study.inputs import Outcome, StudyInputs

_DRAWING = "drawing images"


def draw_gallery(inputs: StudyInputs) -> Outcome[tuple[GalleryImage, ...]]:
    """Draw the images on which groups differ most, each group with the boxes of its first seed."""
    image_files = next(filter(None, map(inputs.artifacts.images, inputs.data.runs)), {})
    is_asked_for = bool(image_files) or bool(inputs.data.trained)  # of files alone: with --images
    if not inputs.settings.num_pictures or not is_asked_for:
        return Outcome(())
    inputs.on_progress(_DRAWING, 0, 1)
    first_detections = {group: by_seed[min(by_seed)] for group, by_seed in inputs.own_detections.items()}
    gallery = make_gallery(inputs.annotations, first_detections, image_files, count=inputs.settings.num_pictures)
    inputs.on_progress(_DRAWING, 1, 1)
    num_lacking = sum(not image.picture for image in gallery)
    if not num_lacking:
        return Outcome(gallery)
    return Outcome(gallery, (f"{num_lacking} of {len(gallery)} pictures: their files are not on this machine.",))


def choose_edges(inputs: StudyInputs) -> Outcome[tuple[EdgeDistributions, ...]]:
    """Return the edges of objects whose distributions are drawn, from the first finished run of each group."""
    trained_runs = [run for run in inputs.finished if run.foreign is None]
    files: dict[str, Path] = {}
    lacking: list[str] = []
    for group, runs in by_group(trained_runs).items():
        if writes_digits(runs[0], inputs.artifacts):
            continue  # digits of plain text have no distribution over bins
        path = inputs.artifacts.file(runs[0], FINAL_CONSTRAINED.distributions)
        if path is None:
            lacking.append(group)
        else:
            files[group] = path

    edges = choose_curves(inputs.annotations, files, aliases=_aliases(inputs, trained_runs))
    if not lacking:
        return Outcome(edges)
    sentence = f"Coordinate distributions of {', '.join(lacking)}: their first runs have not kept any."
    return Outcome(edges, (sentence,))


def _aliases(inputs: StudyInputs, trained_runs: Sequence[RunRecord]) -> dict[str, str]:
    """Return the further names of categories that runs are read with; all runs of a study have the same."""
    if not trained_runs:
        return {}
    aliases = value_at(inputs.artifacts.config(trained_runs[0]), "evaluation.aliases")
    return {str(name): str(category) for name, category in aliases.items()} if isinstance(aliases, dict) else {}
