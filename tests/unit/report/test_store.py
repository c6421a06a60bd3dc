import dataclasses
from pathlib import Path

from coordexp.report.records.artifacts import Artifacts
from coordexp.report.records.load import load_experiment
from coordexp.report.store import comparison_metrics, store_report
from coordexp.report.study.study import Study
from coordexp.tracking.connection import connect
from tests.support.metrics import unregistered


def test_the_ablations_run_gets_files_and_every_number(paired: Study, paired_dir: Path, tmp_path: Path) -> None:
    assert paired.comparison is not None
    page = tmp_path / "report.html"
    page.write_text("<p>")
    artifacts = Artifacts(paired.data, cache=tmp_path, runs_dir=paired_dir)
    assert store_report(paired, [page], artifacts) == ""
    assert store_report(paired, [page], artifacts) == ""  # the same again changes nothing
    client = connect(paired.data.uri)
    parent = client.get_run(paired.data.parent_id).data
    pair = paired.comparison.pairs[0]
    lead = "comparison/A_minus_B_i_/"
    assert parent.metrics[f"{lead}AP"] == pair.difference.value
    assert parent.metrics[f"{lead}AP_low"] == pair.difference.low
    assert parent.metrics[f"{lead}p_holm"] == pair.p_holm
    assert parent.metrics["comparison/C/AP"] == paired.comparison.value["C"].value
    assert parent.tags["verdict"] == paired.verdict
    shown = parent.tags["mlflow.note.content"]
    experiment = client.get_experiment_by_name("paired")
    assert experiment.tags["mlflow.note.content"] == shown
    assert shown.startswith(paired.verdict)
    assert "| group | read by | seeds |" in shown
    assert "| pair | difference |" in shown
    assert (
        f"#/experiments/{experiment.experiment_id}/runs/{paired.data.parent_id}/artifacts/report/report.html" in shown
    )
    assert unregistered(comparison_metrics(paired)) == []
    assert set(comparison_metrics(paired)) <= parent.metrics.keys()
    assert len(client.get_metric_history(paired.data.parent_id, f"{lead}AP")) == 1
    stored = [item.path for item in client.list_artifacts(paired.data.parent_id, "report")]
    assert stored == ["report/report.html"]
    assert not load_experiment(paired.data.uri, "paired").runs[0].metrics.keys() & comparison_metrics(paired).keys()


def test_a_store_that_refuses_costs_no_report(paired: Study, paired_dir: Path, tmp_path: Path) -> None:
    artifacts = Artifacts(paired.data, cache=tmp_path, runs_dir=paired_dir)
    failure = store_report(paired, [tmp_path / "missing.html"], artifacts)
    assert failure.startswith("the report is not in MLflow: ")
    several = dataclasses.replace(paired, data=dataclasses.replace(paired.data, parent_id=""))
    assert store_report(several, [tmp_path / "missing.html"], artifacts) == ""  # there is nothing to store it with
