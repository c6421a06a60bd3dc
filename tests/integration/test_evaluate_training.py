"""Evaluation as scheduled during training: a fixed subset, then everything, with the files a report reads."""

import pytest

from coordexp.detection.metrics import detection_metrics
from coordexp.evaluate.analysis import Analysis
from coordexp.evaluate.distributions import Distributions
from coordexp.metrics import BOX_KINDS
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.runs.reporter import read_rows
from tests.support.evaluation import analyse
from tests.support.metrics import unregistered
from tests.support.training import prepared, small_config, train_here, with_changes

pytestmark = pytest.mark.timeout(240)


@pytest.mark.ci
def test_subset_at_its_cadence_then_all_with_details(base, tmp_path):
    config = small_config(base, tmp_path / "runs")
    config = prepared(with_changes(config, evaluation={"every_steps": 2, "subset_images": 3}))
    train_here(config)
    folder = RunFolder.of(config).path

    rows = read_rows(folder / "metrics.jsonl")
    assert unregistered(name for row in rows for name in row.metrics) == []
    by_step = {2: {}, 4: {}}
    for row in rows:
        by_step.get(row.step, {}).update(row.metrics)
    names = [metric.name for metric in detection_metrics()]
    always = [name for name in names if not name.startswith("AP_") or name.endswith("_score")]
    # Undefined where nothing is found, or no image has so many objects.
    undefined = {"calibration_error", "mean_iou", "repeated_fraction", "burst_fraction", "AR300"}  # the last is LVIS's
    always = [name for name in always if name not in undefined and not name.startswith("recall_rank_")]
    for box in BOX_KINDS:
        for name in always:
            assert f"subset/constrained/{box}/{name}" in by_step[2]
            assert f"subset/constrained/{box}/{name}" in by_step[4]
            assert f"free/{box}/{name}" in by_step[4]
            assert f"constrained/{box}/{name}" in by_step[4]
    assert {"free/malformed", "constrained/malformed"} <= by_step[4].keys()

    annotations = ExperimentFolder.of(config).data / "instances_val.json"
    for decoding in ("constrained", "free"):
        final = folder / "eval" / "final" / decoding
        assert analyse(annotations, final) == Analysis.read(final / "analysis.json")
        assert len(Distributions.read(final / "distributions.json").images) == 6
    assert not list((folder / "eval" / "step_000002").rglob("analysis.json"))
    assert len((folder / "eval" / "step_000002" / "constrained" / "objects.jsonl").read_text().splitlines()) == 3
