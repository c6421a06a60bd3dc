"""Files of detections that no run of ours made, as rows of a study: measured as an evaluation measures its own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from coordexp.detection.box_evaluation import MatchedBoxes
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
from coordexp.report.records.data import ExperimentData, ForeignFile, RunRecord
from coordexp.runs.folder import DecodingFolder

Files = Mapping[str, Sequence[Results]]  # group -> its files, one a seed


def foreign_rows(
    files: Files, annotations: Path, *, frames: Mapping[str, Frame], images: Path | None, scratch: Path
) -> list[RunRecord]:
    """Measure files of detections, and return a finished run for each with the metrics that our evaluations log.

    Files of one group count as seeds. Where all groups have as many, those in the same place are paired, as seeds of
    an experiment are; else the groups are independent samples, so that none is left out.

    Args:
        files: group -> its files.
        annotations: the ground truth, packed or not.
        frames: group -> the frame in which its files stand, for those that are not in the frame of their form.
        images: the folder of the pictures, if there is one.
        scratch: gets what is measured.

    Raises:
        ComparisonError: if two files hold the same detections.
        DataError: if detections do not fit the ground truth.
    """
    _refuse_twins([results for several in files.values() for results in several])
    truth = read_ground_truth(annotations)
    params = {"data.format": "coco" if truth.federated is None else "lvis", "data.val_annotations": str(annotations)}
    if images is not None:
        params["data.val_images"] = str(images)
    unpacked = annotations
    if annotations.suffix == ".gz":  # pycocotools does not unpack
        unpacked = scratch / "annotations.json"
        write_text(unpacked, read_content(annotations).decode())

    unpaired = _unpaired_remark(files)
    rows: list[RunRecord] = []
    for group, several in files.items():
        for seed, results in enumerate(several):
            folder = scratch / f"foreign-{len(rows)}"
            metrics, foreign = _measured(results, truth, frame=frames.get(group, results.frame), folder=folder)
            remarks = foreign.remarks
            if not rows:  # what is to be said of all files is said once
                remarks = tuple(filter(None, (*truth.remarks, *foreign.remarks, unpaired)))
            row = RunRecord(
                run_id="",
                group=group,
                seed=seed,
                state="finished",
                metrics=metrics,
                params=params,
                foreign=replace(foreign, annotations=unpacked, remarks=remarks),
                family=f"files of {group}" if unpaired else "files",
                generator=generator_of(results.path),
            )
            rows.append(row)
    return rows


def with_files(
    data: ExperimentData, files: Files, annotations: Path, *, frames: Mapping[str, Frame], scratch: Path
) -> ExperimentData:
    """Return an experiment with files of other detectors as further groups, behind its own; see :func:`foreign_rows`.

    Raises:
        ComparisonError: if the experiment has a group with the name of a file.
    """
    taken_names = [name for name in files if name in data.groups]
    if taken_names:
        raise ComparisonError(f"{data.name} has a group {taken_names[0]!r} already; expected another name for the file")
    rows = foreign_rows(files, annotations, frames=frames, images=None, scratch=scratch)
    return replace(data, runs=(*data.runs, *rows))


def _unpaired_remark(files: Files) -> str:
    """Say that groups have different numbers of files, so that none are paired; "" if they have as many."""
    if len({len(several) for several in files.values()}) < 2:
        return ""
    numbers = ", ".join(f"{group} {len(several)}" for group, several in files.items())
    return (
        f"Files by group: {numbers}. As the numbers differ, no two files are taken for the same seed: groups are "
        "compared as independent samples, which shows less. Give as many of each, in the same order, to pair them."
    )


def _refuse_twins(files: Sequence[Results]) -> None:
    """Refuse the same detections under two names: their difference is 0 by construction."""
    paths_by_content: dict[bytes, Path] = {}
    for results in files:
        digest = sha256(repr(results.is_named).encode())
        for column in (results.image_ids, results.categories, results.boxes, results.scores):
            digest.update(b"" if column is None else column.tobytes())
        other_path = paths_by_content.get(digest.digest())
        if other_path is not None:
            raise ComparisonError(
                f"{results.path} and {other_path} are the same file, or a copy; expected other detections"
            )
        paths_by_content[digest.digest()] = results.path


def _measured(
    results: Results, truth: GroundTruth, *, frame: Frame, folder: Path
) -> tuple[dict[str, float], ForeignFile]:
    """Measure a file, with what a report says of it; boxes of equal score are ordered by where they are.

    ``folder`` gets the analysis, and the detections if they stand in another frame or order than in the file.
    """
    as_written = detections_of(results, truth, frame)
    detections = in_fair_order(truth, as_written)
    is_reordered = detections is not as_written
    num_tied = as_written.num_tied if is_reordered else 0
    is_plain = results.is_plain and frame == Frame() and not num_tied and not as_written.num_swapped
    evaluation = MatchedBoxes(truth, detections)
    if not is_plain:
        write_detections(folder / "detections.json", detections)
    if is_reordered:
        write_detections(folder / "written.json", as_written)
    analyse_boxes({"expected": evaluation}, None).write(folder)

    metrics = {str(MetricName("constrained", name, "expected")): value for name, value in measure(evaluation).items()}
    image_ids = tuple(np.unique(detections.image_ids).tolist())
    scores = detections.scores
    score_range = f"{scores.min():.3g} to {scores.max():.3g}" if detections.has_scores and len(scores) else "none"
    is_zero = metrics.get("constrained/expected/AP") == 0
    remarks = _remarks(results.path, detections, num_tied=num_tied, is_zero=is_zero)
    foreign = ForeignFile(
        path=results.path,
        detections=results.path if is_plain else folder / "detections.json",
        annotations=truth.path,
        analysis=DecodingFolder(folder).analysis,
        num_detections=len(detections),
        num_images=len(image_ids),
        image_ids=image_ids,
        written=folder / "written.json" if is_reordered else None,
        scores=score_range,
        frame=str(frame),
        remarks=(*results.remarks, *order_remarks(as_written, results.path), *remarks),
    )
    return metrics, foreign


def _remarks(path: Path, detections: Detections, *, num_tied: int, is_zero: bool) -> list[str]:
    """Return what a reader must know of a file to read its numbers rightly."""
    remarks: list[str] = []
    if not len(detections):
        remarks.append(f"{path} holds no detection, so its AP is 0.")
    elif is_zero:
        remarks.append(
            f"{path}: none of its {len(detections)} boxes finds an object at IoU .50 or more, so its AP is 0; "
            "coordexp doctor boxes says whether they are read rightly."
        )
    if num_tied:
        which = f"{path.name} has no scores, so every box has score 1"
        if detections.has_scores:
            which = f"{path.name}: {num_tied} of {len(detections)} boxes share a score with another"
        remarks.append(
            f"{which}: AP depends on the order of such boxes. They are ordered by their coordinates here, "
            "not as in the file, so that no detector wins by its order; AP under a constant score depends on no order."
        )
    scores = detections.scores
    num_outside = int(np.count_nonzero((scores < 0) | (scores > 1)))
    if num_outside:
        remarks.append(
            f"{path}: {num_outside} of {len(scores)} scores lie outside [0, 1] ({scores.min():.3g} to "
            f"{scores.max():.3g}): AP needs only their order, and there is no calibration."
        )
    return remarks
