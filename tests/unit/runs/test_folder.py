"""RunFolder and ExperimentFolder: the layout that the README prints; no other file spells its names."""

import ast
from pathlib import Path

import coordexp
from coordexp.config import load_config
from coordexp.runs.folder import CheckpointFolder, DecodingFolder, ExperimentFolder, RunFolder, Within, experiments_in

PACKAGE = Path(coordexp.__file__).parent
RUN = RunFolder(Path("runs/tiny/A-s0"))


def test_the_layout_of_a_run_is_the_one_that_is_documented():
    found = [
        RUN.config, RUN.fingerprint, RUN.metrics, RUN.checkpoint(100).path, RUN.evaluation(100).path,
        RUN.evaluation("final").decoding("constrained").detections("expected"), RUN.merged, RUN.experiment.report,
    ]  # fmt: skip
    assert [str(path) for path in found] == [
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
    assert [checkpoint.step for checkpoint in run.all_checkpoints()] == [2, 10, 1000000]
    assert list(run.evaluations()) == [2, 10, 1000000]
    run.status.touch()
    assert run.experiment.begun_runs() == [run]
    assert experiments_in(tmp_path) == []
    run.experiment.record.touch()
    assert experiments_in(tmp_path) == [run.experiment]


def test_averages_belong_to_ranks(tmp_path):
    checkpoint = CheckpointFolder(tmp_path)
    for rank in (11, 0):
        checkpoint.averages(rank).touch()
    assert checkpoint.all_averages() == {0: checkpoint.averages(0), 11: checkpoint.averages(11)}


def names_of(folder) -> set[str]:
    """Return the names of the files and folders that the properties of a folder object are."""
    found = (
        getattr(folder, name) for name, value in vars(type(folder)).items() if isinstance(value, property | Within)
    )
    return {path.name for path in found if isinstance(path, Path)}


FILES = {
    name
    for folder in (RUN, ExperimentFolder(Path("tiny")), CheckpointFolder(Path("step_000100")), DecodingFolder(Path()))
    for name in names_of(folder)
    if "." in name
} | {"detections.", "averages_"}
FOLDERS = {"checkpoints", "eval", "merged", "report", "inspect"}


def spelled(tree: ast.Module) -> set[str]:
    """Return the names that a module spells: as a text on its own, at the end of a path, or joined with ``/``."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            found |= {name for name in FILES if node.value.split("/")[-1] == name}
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            found |= {side.value for side in (node.left, node.right) if isinstance(side, ast.Constant)} & FOLDERS
    return found


def test_the_names_are_many_enough_to_mean_something():
    assert {"status.json", "metrics.jsonl", "commit.json", "objects.jsonl", "experiment.json", "stop.json"} <= FILES
    assert spelled(ast.parse('a = run / "eval" / f"detections.{kind}.json"; b = "eval/final/objects.jsonl"')) == {
        "eval", "detections.", "objects.jsonl",
    }  # fmt: skip


def test_only_the_folder_module_spells_the_names():
    found = {str(path.relative_to(PACKAGE)): spelled(ast.parse(path.read_text())) for path in PACKAGE.rglob("*.py")}
    assert {path: names for path, names in found.items() if names and path != "runs/folder.py"} == {}
