"""Objects and records as an evaluation keeps them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from coordexp.data.sample import Objects, Sample
from coordexp.evaluate.evaluation import EvaluationSpec, SplitEvaluation
from coordexp.evaluate.objects import DetectedObject, ImageRecord
from coordexp.runs.folder import EvaluationFolder
from tests.unit.detection.detection_support import Scene


def item(
    desc: str = "thing 1",
    bins: tuple = (100, 100, 200, 200),
    *,
    category_id: int | None = 1,
    expected: tuple | None = None,
    width: tuple = (1, 2, 3, 4),
    score: float = 0.5,
) -> DetectedObject:
    return DetectedObject(
        desc=desc,
        category_id=category_id,
        bins=bins,
        expected=tuple(k / 1000 for k in bins) if expected is None else expected,
        width=tuple(map(float, width)),
        score=score,
    )


def sample_of(image_id: int, size: tuple[int, int]) -> Sample:
    return Sample(
        image=Path(f"{image_id}.jpg"),
        width=size[0],
        height=size[1],
        image_id=image_id,
        objects=Objects((), np.zeros((0, 4))),
    )


def evaluated(folder: Path, given: Scene, objects: Mapping[int, Sequence[DetectedObject]]) -> dict[str, float]:
    """Write the files of an evaluation under free decoding that found these objects; return its metrics."""
    records = [ImageRecord(key, tuple(objects.get(key, ()))) for key in given.sizes_px]
    samples = [sample_of(key, size) for key, size in given.sizes_px.items()]
    evaluation = SplitEvaluation(given.truth, samples, EvaluationSpec(decoding=("free",)))
    metrics = evaluation.run(lambda way: [records], EvaluationFolder(folder))
    return {name.removeprefix("free/"): value for name, value in metrics.items()}
