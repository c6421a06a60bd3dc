"""The rehearsal of a first real run, narrow but as deep as the 2B, and as the other families are."""

import re
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.rehearsal.checkpoint import SIZES
from tests.rehearsal.run import NAME, Rehearsal, write_pictures
from tests.support.real_vocabulary import ranks_file


def rehearse(folder: Path, *, family: str = "qwen3_vl") -> Rehearsal:
    ranks_file()
    write_pictures(folder / "data")
    rehearsal = Rehearsal(folder, "small", family=family)
    rehearsal.run()
    return rehearsal


@pytest.mark.ci
@pytest.mark.timeout(900)
def test_a_deep_bfloat16_checkpoint_goes_the_whole_way(tmp_path):
    rehearsed = rehearse(tmp_path)
    client = MlflowClient(f"sqlite:///{rehearsed.runs}/mlflow.db")
    experiment = client.get_experiment_by_name(NAME)
    states = {run.info.run_name: run.info.status for run in client.search_runs([experiment.experiment_id])}
    assert states == {"A-s0": "FINISHED", "C-s0": "FINISHED", NAME: "FINISHED"}
    for run in ("A-s0", "C-s0"):
        for decoding in ("constrained", "free"):
            answered = rehearsed.runs / NAME / run / "eval" / "final" / decoding / "objects.jsonl"
            assert len(answered.read_text().splitlines()) == 4
    compared = (rehearsed.folder / "comparison" / "report.csv").read_text()
    assert all(f",group,{group}," in compared for group in "AC")
    memory, *_ = rehearsed.foretold()
    foretold, came = (float(number) for number in re.findall(r"([\d.]+) GiB", memory))
    assert 0.5 * foretold < came < 2 * foretold


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("family", [name for name in SIZES if name != "qwen3_vl"])
def test_each_family_goes_the_whole_way_on_ray(family, tmp_path):
    """Its own shape and vocabulary; each stage has to end well, and the report to have a row of each group."""
    memory, disk, _ = rehearse(tmp_path, family=family).foretold()
    assert "not estimated for this family" in memory
    assert "came: " in disk
