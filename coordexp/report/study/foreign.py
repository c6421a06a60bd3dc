"""Files of detections that no run of ours made, as rows of a study: measured as an evaluation measures its own."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from coordexp.detection.box_evaluation import BoxEvaluation
from coordexp.detection.detections import Detections, detections_of, order_remarks, write_detections
from coordexp.detection.forms.frames import Frame
from coordexp.detection.forms.results import Results
from coordexp.detection.ground_truth import GroundTruth, read_ground_truth
from coordexp.detection.metrics import measure
from coordexp.detection.precision.fair_order import in_fair_order
from coordexp.errors import ComparisonError
from coordexp.evaluate.analysis import analyse_boxes
from coordexp.evaluate.generated_by import generator_of
from coordexp.files import read_content, write_text
from coordexp.metrics import MetricName
from coordexp.report.study.data import ExperimentData, ForeignFile, RunRecord
from coordexp.runs.folder import DecodingFolder

Files = Mapping[str, Sequence[Results]]  # group -> its files, one a seed


def foreign_rows(
    files: Files, annotations: Path, *, frames: Mapping[str, Frame], images: Path | None, scratch: Path
) -> list[RunRecord]:
    """Measure files of detections, and return a finished run for each with the metrics that our evaluations log.

    Files of one group count as seeds. Where all groups have as many, those in the same place are paired, as seeds of
    an experiment are; else the groups are independent samples, so that none is left out. ``frames`` say in which frame
    the files of a group stand, where that is not COCO's; ``scratch`` gets what is measured.
    """
    _refuse_twins([found for several in files.values() for found in several])
    truth, plain, unpaired = read_ground_truth(annotations), annotations, ""
    params = {"data.format": "coco" if truth.federated is None else "lvis", "data.val_annotations": str(annotations)}
    if images is not None:
        params["data.val_images"] = str(images)
    if annotations.suffix == ".gz":  # pycocotools does not unpack
        plain = scratch / "annotations.json"
        write_text(plain, read_content(annotations).decode())
    if len({len(several) for several in files.values()}) > 1:
        numbers = ", ".join(f"{group} {len(several)}" for group, several in files.items())
        unpaired = (
            f"Files by group: {numbers}. As the numbers differ, no two files are taken for the same seed: groups are "
            "compared as independent samples, which shows less. Give as many of each, in the same order, to pair them."
        )
    rows: list[RunRecord] = []
    for group, several in files.items():
        for seed, results in enumerate(several):
            folder = scratch / f"foreign-{len(rows)}"
            metrics, found = _measured(results, truth, frame=frames.get(group, results.frame), folder=folder)
            remarks = found.remarks if rows else (*truth.remarks, *found.remarks, *([unpaired] if unpaired else []))
            family = f"files of {group}" if unpaired else "files"
            foreign = replace(found, annotations=plain, remarks=remarks)
            generator = generator_of(results.path)
            run = RunRecord(
                "",
                group,
                seed,
                "finished",
                metrics=metrics,
                params=params,
                foreign=foreign,
                family=family,
                generator=generator,
            )
            rows.append(run)
    return rows


def with_files(
    data: ExperimentData, files: Files, annotations: Path, *, frames: Mapping[str, Frame], scratch: Path
) -> ExperimentData:
    """Return an experiment with files of other detectors as further groups, behind its own; :func:`foreign_rows`."""
    if taken := [name for name in files if name in data.groups]:
        raise ComparisonError(f"{data.name} has a group {taken[0]!r} already; expected another name for the file")
    rows = foreign_rows(files, annotations, frames=frames, images=None, scratch=scratch)
    return replace(data, runs=(*data.runs, *rows))


def _refuse_twins(files: Sequence[Results]) -> None:
    """Refuse the same detections under two names: their difference is 0 by construction."""
    seen: dict[bytes, Path] = {}
    for found in files:
        digest = sha256(repr(found.is_named).encode())
        for column in (found.image_ids, found.categories, found.boxes, found.scores):
            digest.update(b"" if column is None else column.tobytes())
        key = digest.digest()
        if key in seen:
            raise ComparisonError(
                f"{found.path} and {seen[key]} are the same file, or a copy; expected other detections"
            )
        seen[key] = found.path


def _measured(
    results: Results, truth: GroundTruth, *, frame: Frame, folder: Path
) -> tuple[dict[str, float], ForeignFile]:
    """Measure a file, with what a report says of it; boxes of equal score are ordered by where they are."""
    path, written = results.path, detections_of(results, truth, frame)
    detections = in_fair_order(truth, written)
    tied = 0 if detections is written else written.num_tied
    is_plain = results.is_plain and frame == Frame() and not tied and not written.num_swapped
    evaluation = BoxEvaluation(truth, detections)
    if not is_plain:
        write_detections(folder / "detections.json", detections)
    if detections is not written:
        write_detections(folder / "written.json", written)
    analyse_boxes({"expected": evaluation}, None).write(folder)
    scores = detections.scores
    image_ids = tuple(np.unique(detections.image_ids).tolist())
    metrics = {str(MetricName("constrained", name, "expected")): value for name, value in measure(evaluation).items()}
    return metrics, ForeignFile(
        path=path,
        detections=path if is_plain else folder / "detections.json",
        annotations=truth.path,
        analysis=DecodingFolder(folder).analysis,
        num_detections=len(detections),
        num_images=len(image_ids),
        image_ids=image_ids,
        written=None if detections is written else folder / "written.json",
        scores=f"{scores.min():.3g} to {scores.max():.3g}" if detections.has_scores and len(scores) else "none",
        frame=str(frame),
        remarks=(
            *results.remarks,
            *order_remarks(written, path),
            *_remarks(path, detections, tied=tied, is_nothing=metrics.get("constrained/expected/AP") == 0),
        ),
    )


def _remarks(path: Path, detections: Detections, *, tied: int, is_nothing: bool) -> Iterator[str]:
    """Yield what a reader must know of a file to read its numbers rightly."""
    scores = detections.scores
    outside = int(np.count_nonzero((scores < 0) | (scores > 1)))
    if not len(detections):
        yield f"{path} holds no detection, so its AP is 0."
    elif is_nothing:
        yield (
            f"{path}: none of its {len(detections)} boxes finds an object at IoU .50 or more, so its AP is 0; "
            "coordexp doctor boxes says whether they are read rightly."
        )
    if tied:
        which = (
            f"{path.name}: {tied} of {len(detections)} boxes share a score with another"
            if detections.has_scores
            else f"{path.name} has no scores, so every box has score 1"
        )
        yield (
            f"{which}: AP depends on the order of such boxes. They are ordered by their coordinates here, "
            "not as in the file, so that no detector wins by its order; AP under a constant score depends on no order."
        )
    if outside:
        yield (
            f"{path}: {outside} of {len(scores)} scores lie outside [0, 1] ({scores.min():.3g} to {scores.max():.3g}): "
            "AP needs only their order, and there is no calibration."
        )
