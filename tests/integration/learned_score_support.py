"""What two evaluations wrote, compared by their boxes and scores."""

import pytest

from coordexp.evaluate.objects import DetectedObject, read_objects
from coordexp.runs.folder import EvaluationFolder


def objects_of(folder: EvaluationFolder) -> dict[int, tuple[DetectedObject, ...]]:
    """Return the objects of each image, under constrained decoding."""
    return {line.image_id: line.objects for line in read_objects(folder.decoding("constrained").objects)}


def assert_scored_alike(found: EvaluationFolder, expected: EvaluationFolder, *, tolerance: float = 1e-3) -> None:
    """Check that both have the same boxes, some, and the same scores of them, which differ among themselves."""
    objects, others = objects_of(found), objects_of(expected)
    assert objects.keys() == others.keys()
    for image_id, own in others.items():
        assert [item.bins for item in objects[image_id]] == [item.bins for item in own]
        scores = [item.score for item in own]
        assert [item.score for item in objects[image_id]] == pytest.approx(scores, abs=tolerance)
    assert len({item.score for own in others.values() for item in own}) > 4
