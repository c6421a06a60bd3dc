"""Our six errors against tide.json, which TIDE's own package computed, images as they are and really repeated."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from coordexp.detection.decomposition import Decomposed
from coordexp.detection.precision.average_precision import unit_weights
from tests.support.detections import DtRow, GtRow, Scene, as_detections

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "tide.json").read_text(encoding="utf-8"))
MAKE = runpy.run_path(str(HERE / "derive_tide.py"))["make_scene"]
NAMES = ("AP50", "Cls", "Loc", "Both", "Dupe", "Bkg", "Miss")


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: f"scene {golden['seed']}")
def test_every_error_costs_what_tide_says(golden: dict) -> None:
    made = MAKE(golden["seed"])
    truth = [GtRow(image, category, tuple(box), box[2] * box[3]) for image, category, box in made["truth"]]
    scene = Scene(dict.fromkeys(range(1, 11), (400, 400)), {key: str(key) for key in range(1, 5)}, truth)
    rows = [DtRow(image, category, tuple(box), score) for image, category, box, score in made["detections"]]
    found = Decomposed(scene.truth, as_detections(rows))
    for weights, expected in (
        (unit_weights(10), golden["once"]),
        (np.array(made["copies"], np.uint16), golden["repeated"]),
    ):
        values = found.measure(weights[None])[0, :7]
        values[1:] = np.maximum(values[1:], 0.0)  # TIDE shows no error that costs less than nothing
        assert dict(zip(NAMES, values, strict=True)) == pytest.approx(expected, rel=0, abs=1e-9)


def test_the_scenes_have_every_error() -> None:
    assert all(any(golden["once"][name] > 0.003 for golden in GOLDEN) for name in NAMES)
