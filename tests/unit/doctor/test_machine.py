import fcntl
import os
import shutil
from pathlib import Path

import pytest

from coordexp.config.schema import ExperimentConfig
from coordexp.doctor.machine import Machine, examine_disk, examine_experiment, examine_loading
from coordexp.files import write_text
from coordexp.findings import collect
from coordexp.runs.experiment import open_experiment
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.plan import plan_runs
from tests.unit.doctor.doctor_support import tree

GIB = 2**30


def _config(runs_dir: Path, **sections: object) -> ExperimentConfig:
    return ExperimentConfig.model_validate({"experiment": {"name": "small", "runs_dir": str(runs_dir)}, **sections})


def _experiment(config: ExperimentConfig) -> dict[str, tuple[str, str]]:
    findings, _ = collect(examine_experiment(config))
    return {finding.check: (finding.verdict, finding.sentence) for finding in findings}


def _disk(config: ExperimentConfig, weights_bytes: int | None) -> tuple[str, str]:
    (found,) = examine_disk(plan_runs(config), weights_bytes)
    return found.verdict, found.sentence


def test_a_new_directory_is_not_made(tmp_path):
    assert _experiment(_config(tmp_path / "runs"))["runs_dir"][0] == "ok"
    assert tree(tmp_path) == {}


def test_a_directory_that_cannot_be_made(tmp_path, monkeypatch):
    (tmp_path / "runs").write_text("a file")
    verdict, sentence = _experiment(_config(tmp_path / "runs"))["runs_dir"]
    assert verdict == "failure"
    assert "is a file; choose experiment.runs_dir" in sentence
    monkeypatch.setattr(os, "access", lambda *_: False)
    verdict, sentence = _experiment(_config(tmp_path / "other"))["runs_dir"]
    assert verdict == "failure"
    assert f"{tmp_path} cannot be written" in sentence


def test_a_name_with_another_configuration(tmp_path):
    config = _config(tmp_path)
    open_experiment(config)
    write_text(tmp_path / "small" / "A-s0" / "status.json", "{}")
    assert _experiment(config)["runs_dir"] == ("ok", f"{tmp_path}/small: goes on there, writable")
    verdict, sentence = _experiment(_config(tmp_path, training={"max_steps": 7}))["experiment"]
    assert verdict == "failure"
    assert "exists" in sentence
    assert "training.max_steps" in sentence


def test_an_experiment_that_is_being_run(tmp_path):
    lock = tmp_path / ".small.lock"
    lock.write_text('{"process": 77, "host": "elsewhere"}')
    before = lock.read_text()
    assert "experiment" not in _experiment(_config(tmp_path))
    with lock.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        verdict, sentence = _experiment(_config(tmp_path))["experiment"]
    assert verdict == "failure"
    assert "is being run by process 77 on elsewhere" in sentence
    assert lock.read_text() == before


def test_disk(tmp_path, monkeypatch):
    config = _config(tmp_path / "runs")
    assert _disk(config, 4 * 2**20)[0] == "ok"
    assert _disk(config, None)[0] == "warning"
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=200 * 2**20))
    verdict, sentence = _disk(config, 4 * 2**20)
    assert verdict == "failure"
    assert "0.20 GiB of disk are free" in sentence


def test_disk_is_for_the_runs_and_for_every_base_that_is_not_made_yet(tmp_path, monkeypatch):
    """A base and three checkpoints a run: 1.6 GiB and some room each; two structures have two bases."""
    groups = {"A": {}, "B": {"data": {"structure": "spec"}}}
    config = _config(tmp_path, ablation={"groups": groups, "factor": ["data.structure"]})
    usage = shutil.disk_usage(tmp_path)

    def verdict(free_gib: float) -> str:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=round(free_gib * GIB)))
        return _disk(config, GIB)[0]

    both = 2 * (1 + 3 / 5) + 0.25
    assert (verdict(both + 1.9), verdict(both + 2.1)) == ("failure", "ok")
    ExperimentFolder.of(plan_runs(config)[0].config).base(plan_runs(config)[0].config).mkdir(parents=True)
    assert (verdict(both + 0.9), verdict(both + 1.1)) == ("failure", "ok")
    assert _disk(config, GIB)[1] == f"{both + 1.1:.2f} GiB free at {tmp_path}/small; 2 runs need about 4.45 GiB"


def test_workers_that_load_more_than_there_is_memory():
    config = _config(Path("/runs"), cluster={"num_workers": 8, "gpus_per_worker": 1.0})
    eight = Machine(("H",) * 8, (80 * GIB,) * 8, 64 * GIB, 64)
    (found,) = examine_loading(config, 9 * GIB, eight)
    assert found.verdict == "warning"
    assert "8 workers here read 9.00 GiB" in found.sentence
    assert [*examine_loading(config, 5 * GIB, eight)] == []


def test_the_machine_here():
    here = Machine.here()
    assert here.num_cpus >= 1
    assert here.ram_bytes > 2**28
    assert len(here.gpu_names) == len(here.gpu_bytes)
    assert "CPUs" in here.describe()


@pytest.mark.parametrize(("gpus", "expected"), [((), "no GPU"), ((("H200", 141 * GIB),), "H200 (141 GiB)")])
def test_in_words(gpus, expected):
    machine = Machine(tuple(name for name, _ in gpus), tuple(size for _, size in gpus), 8 * GIB, 4)
    assert machine.describe() == f"4 CPUs, 8 GiB of memory, {expected}"
