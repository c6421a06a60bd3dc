"""A merge that fails costs nothing that was measured, and the same command tries it again, alone."""

import io
import json
import shutil
from collections import Counter

import pytest
from rich.console import Console

from coordexp.cli.ablation import run_and_report
from coordexp.config.schema import ExperimentConfig
from coordexp.model import load
from coordexp.runs.folder import RunFolder
from coordexp.runs.plan import plan_runs
from coordexp.runs.reporter import read_rows
from coordexp.tracking.connection import connect
from coordexp.tracking.publish import tracking_uri
from tests.support.training import small_config, write_base

pytestmark = [pytest.mark.ci, pytest.mark.timeout(240)]


def _run(config) -> tuple[int, str]:
    text = io.StringIO()
    return run_and_report(config, console=Console(file=text, width=160)), text.getvalue()


@pytest.mark.parametrize(
    "num_lost", [pytest.param(0, marks=pytest.mark.ci), 1]
)  # rows that MLflow has and no checkpoint keeps: the disk was full
def test_a_run_without_its_merge_is_finished_with_a_warning_and_merges_later(tmp_path, num_lost):
    sections = small_config(write_base(tmp_path / "base"), tmp_path / "runs", max_steps=2).model_dump(mode="json")
    sections["experiment"]["group"] = "A"
    sections |= {"ablation": {"groups": {"A": {}}}, "cluster": {"executor": "inline"}}
    config = ExperimentConfig.model_validate(sections)
    (plan,) = plan_runs(config)
    folder = RunFolder(plan.run_dir)
    (folder.merged / "notes").mkdir(parents=True)  # where something else lies, nothing is overwritten

    code, text = _run(config)
    status = plan.status()
    assert (code, status.state, status.is_merged) == (0, "finished", False)
    assert "not merged" in status.message
    assert "not merged" in text
    detections = folder.evaluation("final").decoding("constrained").detections("argmax")
    written, rows = detections.stat().st_mtime_ns, read_rows(folder.metrics)

    marker = folder.checkpoint(2).commit_marker
    kept = json.loads(marker.read_text())
    assert kept["rows"] == len(rows)
    marker.write_text(json.dumps(kept | {"rows": len(rows) - num_lost}))
    shutil.rmtree(folder.merged)
    code, text = _run(config)
    status = plan.status()
    assert (code, status.state, status.is_merged, status.message[:9]) == (0, "finished", True, "")
    assert detections.stat().st_mtime_ns == written  # not evaluated again
    assert load(folder.merged).vocab is not None
    assert json.loads((folder.merged / "merge_report.json").read_text())["num_offset_rows"] == 1000
    again = read_rows(folder.metrics)
    assert again[: len(rows) - num_lost] == rows[: len(rows) - num_lost]
    assert [sum(name in row.metrics for row in again) for name in ("final/steps", "final/seconds")] == [1, 1]
    assert any("final/merge_lost_logits" in row.metrics for row in again)
    client = connect(tracking_uri(config))
    experiment = client.get_experiment_by_name(config.experiment.name).experiment_id
    recorded = client.search_runs([experiment])
    assert {run.info.status for run in recorded} == {"FINISHED"}
    (run,) = (one for one in recorded if one.info.run_name == "A-s0")
    points = [point for name in {*run.data.metrics} for point in client.get_metric_history(run.info.run_id, name)]
    told = Counter((point.key, point.step) for point in points)
    assert told["final/merge_lost_logits", 2] == 1
    assert told == Counter((name, row.step) for row in again for name in row.metrics if name in run.data.metrics)

    assert "A-s0  finished before" in _run(config)[1]
