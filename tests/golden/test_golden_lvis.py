"""Our matcher on federated ground truth against lvis.json, which lvis-api itself computed."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from coordexp.detection import evaluate_detections
from coordexp.detection.box_evaluation import MatchedBoxes
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.matching.matcher import Matcher
from coordexp.detection.metrics import measure
from coordexp.detection.precision.average_precision import AVERAGE_PRECISIONS
from coordexp.statistics import paired_bootstrap
from tests.support.detections import average_precision

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "lvis.json").read_text(encoding="utf-8"))
MAKE = runpy.run_path(str(HERE / "derive_lvis.py"))["make_scene"]
NAMES = {
    "AP": "AP", "AP50": "AP50", "AP75": "AP75", "APs": "AP_small", "APm": "AP_medium", "APl": "AP_large",
    "APr": "AP_rare", "APc": "AP_common", "APf": "AP_frequent", "AR@300": "AR300",
}  # fmt: skip
EXACT = {"rel": 0, "abs": 1e-12}


def written(folder: Path, scene: dict) -> tuple[Path, Path]:
    for name in ("truth", "detections"):
        (folder / f"{name}.json").write_text(json.dumps(scene[name]))
    return folder / "truth.json", folder / "detections.json"


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: f"scene {golden['seed']}")
def test_every_number_is_that_of_lvis_api(golden: dict, tmp_path: Path) -> None:
    scene = MAKE(golden["seed"])
    annotations, found = written(tmp_path, scene)
    truth = read_ground_truth(annotations)
    detections = read_detections(found, truth)
    metrics = measure(MatchedBoxes(truth, detections))
    assert {name: metrics.get(ours) for name, ours in NAMES.items()} == pytest.approx(golden["once"], **EXACT)
    assert "AR100" not in metrics
    assert evaluate_detections(annotations, found).AP_medium == metrics["AP_medium"]
    copies = np.array(scene["copies"], np.uint16)
    for name, which in AVERAGE_PRECISIONS.items():
        value = average_precision(Matcher(truth, detections).matches(which.area), which, copies)
        expected = golden["repeated"][{ours: theirs for theirs, ours in NAMES.items()}[name]]
        assert value == pytest.approx(np.nan if expected is None else expected, nan_ok=True, **EXACT)


def test_statistics_read_a_federated_file_by_its_rules(tmp_path: Path) -> None:
    annotations, found = written(tmp_path, MAKE(0))
    report = paired_bootstrap(annotations, {"A": found}, resamples=20)
    assert report.ap["A"] == pytest.approx(GOLDEN[0]["once"]["AP"], **EXACT)
