"""The curves of chosen objects: which images, how they are rounded, how large the file is."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.evaluate.distributions import (
    NUM_IMAGES,
    BinCurve,
    Distributions,
    ImageCurves,
    ObjectCurves,
    images_with_curves,
)
from tests.support.detections import scene

BOX = [0, 0, 10, 10]


def test_rounding_by_hand() -> None:
    probs = np.zeros(NUM_BINS, np.float32)
    probs[[100, 101, 103]] = [0.25, 0.7499, 0.0001]
    probs[104] = 4e-6  # under half a unit
    assert BinCurve.of(probs) == BinCurve(start=100, units=(25000, 74990, 0, 10))
    assert BinCurve.of(np.zeros(NUM_BINS, np.float32)) == BinCurve(0, ())
    flat = BinCurve.of(np.full(NUM_BINS, 1e-3, np.float32))
    assert (flat.start, set(flat.units), len(flat.units)) == (0, {100}, NUM_BINS)


def test_a_curve_is_the_distribution_to_half_a_unit() -> None:
    rng = np.random.default_rng(0)
    logits = -((np.arange(NUM_BINS) - rng.uniform(0, 1000)) ** 2) / rng.uniform(1, 500) + rng.normal(0, 1, NUM_BINS)
    probs = np.exp(logits - logits.max()).astype(np.float32)
    probs /= probs.sum()
    curve = BinCurve.of(probs)
    back = np.zeros(NUM_BINS)
    back[curve.start : curve.start + len(curve.units)] = np.array(curve.units) / 1e5
    assert np.abs(back - probs).max() <= 0.5e-5 + 1e-9
    assert abs(back.sum() - 1) < NUM_BINS * 0.5e-5


def test_the_images_depend_on_the_data_alone() -> None:
    boxes = [(image, 1, BOX) for image in range(1, 301) for _ in range(image % 7)]
    given = scene(*boxes, num_images=300)
    chosen = images_with_curves(given.truth, range(1, 301))
    assert len(chosen) == NUM_IMAGES
    assert images_with_curves(given.truth, reversed(range(1, 301))) == chosen
    assert images_with_curves(replace(given, boxes=given.boxes[::-1]).truth, range(1, 301)) == chosen
    assert {image % 7 for image in chosen} == set(range(7)), "images with every number of objects"
    assert images_with_curves(given.truth, [5, 9]) == {5, 9}
    assert images_with_curves(given.truth, []) == frozenset()


def flat_file() -> Distributions:
    """The worst case: as many objects as there may be, no bin without probability."""
    rng = np.random.default_rng(0)
    images = []
    for key in range(1, NUM_IMAGES + 1):
        objects = []
        for _ in range(4):
            curves = [BinCurve.of(rng.dirichlet(np.full(NUM_BINS, 50.0)).astype(np.float32)) for _ in range(4)]
            objects.append(ObjectCurves("red circle", (1, 2, 3, 4), (0.123456789,) * 4, (288.675,) * 4, tuple(curves)))
        images.append(ImageCurves(key, tuple(objects)))
    return Distributions(NUM_BINS, 1e-5, tuple(images))


def test_the_file_is_bounded_and_reads_back(tmp_path: Path) -> None:
    whole = flat_file()
    whole.write(tmp_path)
    assert (tmp_path / "distributions.json").stat().st_size < 2.2e6
    assert Distributions.read(tmp_path / "distributions.json") == whole
