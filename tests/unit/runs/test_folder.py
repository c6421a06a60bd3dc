"""RunFolder and ExperimentFolder: the layout that the README prints."""

from pathlib import Path

from coordexp.config import load_config
from coordexp.runs.folder import ExperimentFolder, RunFolder, experiments_in, step_of

RUN = RunFolder(Path("runs/tiny/A-s0"))


def test_the_layout_of_a_run_is_the_one_that_is_documented():
    documented = [
        RUN.config, RUN.fingerprint, RUN.metrics, RUN.checkpoint(100).path, RUN.evaluation(100).path,
        RUN.evaluation("final").decoding("constrained").detections("expected"), RUN.merged, RUN.experiment.report,
    ]  # fmt: skip
    assert [str(path) for path in documented] == [
        "runs/tiny/A-s0/config.yaml",
        "runs/tiny/A-s0/fingerprint.json",
        "runs/tiny/A-s0/metrics.jsonl",
        "runs/tiny/A-s0/checkpoints/step_000100",
        "runs/tiny/A-s0/eval/step_000100",
        "runs/tiny/A-s0/eval/final/constrained/detections.expected.json",
        "runs/tiny/A-s0/merged",
        "runs/tiny/report",
    ]


def test_a_configuration_names_its_folders(tmp_path):
    config = load_config("experiments/tiny.yaml", ["experiment.group=C", f"experiment.runs_dir={tmp_path}"])
    experiment = ExperimentFolder.of(config)
    assert (experiment.path, experiment.name) == (tmp_path / "tiny", "tiny")
    assert RunFolder.of(config) == experiment.run("C", 0)
    assert RunFolder.of(config).experiment == experiment
    assert experiment.lock == tmp_path / ".tiny.lock"  # beside the folder, which --fresh moves


def test_what_is_there_is_listed_in_the_order_of_its_steps(tmp_path):
    run = RunFolder(tmp_path / "tiny" / "A-s0")
    assert (run.all_checkpoints(), run.evaluations(), run.experiment.begun_runs()) == ([], {}, [])
    for name in ("step_000010", "step_000002", "step_1000000", "step_x", "other"):
        (run.checkpoints / name).mkdir(parents=True)
        (run.path / "eval" / name).mkdir(parents=True)
    assert [step_of(checkpoint.path) for checkpoint in run.all_checkpoints()] == [2, 10, 1000000]
    assert list(run.evaluations()) == [2, 10, 1000000]
    run.status.touch()
    assert run.experiment.begun_runs() == [run]
    assert experiments_in(tmp_path) == []
    run.experiment.record.touch()
    assert experiments_in(tmp_path) == [run.experiment]
