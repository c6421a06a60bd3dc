"""Frozen samples are the samples."""

from pathlib import Path

import pytest

from coordexp.data.batches.frozen import FrozenSamples
from coordexp.data.sample import DetectionObject, Sample

THING = DetectionObject("chat noir", (0, 0.1, 0.2, 1 / 3))
SAMPLES = [Sample(Path(f"/images/é{num}.jpg"), 640, 480 + num, num, (THING,) * num) for num in range(5)]


def test_each_access_gives_an_equal_sample():
    frozen = FrozenSamples(SAMPLES)
    assert list(frozen) == SAMPLES
    assert len(frozen) == 5
    assert frozen[-1] == SAMPLES[-1]
    assert frozen[1:4:2] == SAMPLES[1:4:2]
    assert SAMPLES[3] in frozen


@pytest.mark.parametrize("index", [5, -6])
def test_an_index_outside_is_refused(index):
    with pytest.raises(IndexError, match=f"sample {index} of 5"):
        FrozenSamples(SAMPLES)[index]


def test_none_at_all():
    assert list(FrozenSamples([])) == []
