"""The protocols of published tables: equal to pycocotools and to the metrics they are, also on a part of the images."""

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from coordexp.detection import evaluate_detections
from coordexp.detection.box_evaluation import MatchedBoxes
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.metrics.f1 import macro_f1, positive_only_f1
from coordexp.detection.precision.average_precision import tied_precision, unit_weights
from coordexp.detection.protocols import PROTOCOLS, Written
from tests.support.detection_simulator import write_experiment

NUM_IMAGES = 40
BY_NAME = {protocol.name: protocol for protocol in PROTOCOLS}


@pytest.fixture(scope="module", params=[3, 12], ids=["3 categories", "12 categories"])
def files(request, tmp_path_factory) -> tuple[Path, Path]:
    """Ground truth with crowds, and detections in an order of their own."""
    folder = tmp_path_factory.mktemp("protocols")
    annotations, written = write_experiment(
        folder, number=4, num_images=NUM_IMAGES, effects={"A": 0.3}, num_categories=request.param
    )
    truth = json.loads(annotations.read_text())
    for box in truth["annotations"][::9]:
        box["iscrowd"] = 1
    annotations.write_text(json.dumps(truth))
    entries = json.loads(written["A"][0].read_text())
    order = np.random.default_rng(0).permutation(len(entries))
    written["A"][0].write_text(json.dumps([entries[at] for at in order.tolist()]))
    return annotations, written["A"][0]


@pytest.fixture
def written(files) -> Written:
    truth = read_ground_truth(files[0])
    detections = read_detections(files[1], truth)
    return Written(truth, detections, np.arange(len(detections)) % 5 != 0)


def test_every_score_1_is_pycocotools_on_the_file_as_it_was_written(files, written: Written) -> None:
    annotations, detections = files
    entries = [{**entry, "score": 1} for entry in json.loads(detections.read_text())]
    path = detections.with_name("ones.json")
    path.write_text(json.dumps(entries))
    value = BY_NAME["AP_one_score"].value(written)
    assert value == pytest.approx(evaluate_detections(annotations, path).AP, abs=1e-12)
    path.write_text(json.dumps(entries[::-1]))
    turned = Written(written.truth, read_detections(path, written.truth))
    assert BY_NAME["AP_one_score"].value(turned) != pytest.approx(value, abs=1e-6), "the order decides"
    assert BY_NAME["AP_constant_score"].value(turned) == pytest.approx(BY_NAME["AP_constant_score"].value(written))


def test_without_category_is_pycocotools_without_categories(files, written: Written) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(files[0]))
        evaluation = COCOeval(truth, truth.loadRes(str(files[1])), "bbox")
        evaluation.params.useCats = 0
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    assert BY_NAME["AP_without_category"].value(written) == pytest.approx(evaluation.stats[0], abs=1e-12)


def test_the_others_are_the_metrics_of_their_name(written: Written) -> None:
    boxes = MatchedBoxes(written.truth, written.detections)
    assert BY_NAME["AP_constant_score"].value(written) == pytest.approx(tied_precision(boxes.oracle_matches), abs=1e-12)
    assert BY_NAME["F1_macro"].value(written) == pytest.approx(macro_f1(boxes).mean(), abs=1e-12)
    assert BY_NAME["F1_positive"].value(written) == pytest.approx(positive_only_f1(boxes).mean(), abs=1e-12)
    kept = MatchedBoxes(written.truth, written.detections.rows(written.before_repeat))
    assert BY_NAME["AP_cut"].value(written) == pytest.approx(kept.average_precision("AP"), abs=1e-12)
    assert BY_NAME["AP_cut"].value(Written(written.truth, written.detections)) is None, "no answers"


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_weights_of_0_and_1_are_a_part_of_the_images(written: Written, protocol) -> None:
    image_ids = list(range(1, NUM_IMAGES + 1, 2))
    weights = np.stack([unit_weights(NUM_IMAGES), np.isin(range(1, NUM_IMAGES + 1), image_ids).astype(np.uint16)])
    whole, part = protocol.values(written, weights)
    rows = np.isin(written.detections.image_ids, image_ids)
    of_part = Written(written.truth.on_images(image_ids), written.detections.rows(rows), written.before_repeat[rows])
    assert whole == pytest.approx(protocol.value(written), abs=1e-12)
    assert part == pytest.approx(protocol.value(of_part), abs=1e-12)
    assert part != whole


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_nothing_to_find_is_not_defined(written: Written, protocol) -> None:
    none = np.zeros(len(written.truth.is_crowd), np.bool_)
    columns = ("image_ids", "category_ids", "boxes_px_xywh", "areas_px2", "is_crowd")
    empty = replace(written.truth, **{name: getattr(written.truth, name)[none] for name in columns})
    assert protocol.value(Written(empty, written.detections, written.before_repeat)) is None
