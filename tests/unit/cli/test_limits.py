"""Numbers that libraries do not take, and places that cannot be made, end in one sentence before any work begins."""

from pathlib import Path

import pytest

from coordexp.cli.main import main
from coordexp.data.sources.shapes import ShapesSpec, write_shapes


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("ablation.seeds=[8589934592]", "ablation.seeds.0: got 8589934592, expected a number of at most 4294967295"),
        (f"training.max_steps={10**30}", "expected a number of at most 2147483647"),
        ("cluster.cpus_per_worker=-1", "cluster.cpus_per_worker: got -1"),
    ],
)
def test_a_value_beyond_its_limit_is_refused_with_it(override: str, said: str, capsys, tmp_path: Path) -> None:
    assert main(["ablation", "--dry-run", f"experiment.runs_dir={tmp_path / 'runs'}", override]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["report", "x", "--resamples", "9" * 60], "argument --resamples: expected a number from 1 to 2,147,483,647"),
        (["report", "x", "--resamples", "1e3"], "argument --resamples: expected a whole number, got '1e3'"),
        (["compare", "--seed", "-1"], "argument --seed: expected a number from 0 to 4,294,967,295, got '-1'"),
        (["evaluate", "--gpus-per-worker", "inf"], "argument --gpus-per-worker: expected a number from 0 to"),
    ],
)
def test_an_option_beyond_its_limit_is_refused_with_it(command: list[str], said: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["prepare", "inspect", "predict", "expand-vocab", "evaluate", "compare"])
def test_a_folder_that_cannot_be_made_is_named(verb: str, tmp_path: Path, capsys) -> None:
    """A file is in its way."""
    file = tmp_path / "file"
    file.write_text("mine")
    place = str(file / "x")
    data = tmp_path / "shapes"
    write_shapes(data, ShapesSpec(num_train=2, num_val=2))
    truth = ["--annotations", str(data / "instances_val.json")]
    (tmp_path / "found.json").write_text("[]")
    command = {
        "prepare": ["prepare", "shapes", "--output", place],
        "inspect": ["inspect", "--output", place, "--num", "1", f"experiment.runs_dir={tmp_path / 'runs'}"],
        "predict": ["predict", "--model", "embedded", "--output", place, str(next((data / "val").iterdir()))],
        "expand-vocab": ["expand-vocab", "--model", "embedded", "--output", place],
        "evaluate": ["evaluate", "--model", "embedded", *truth, "--images", str(data / "val"), "--output", place],
        "compare": ["compare", *truth, f"A={tmp_path / 'found.json'}", "--output", place],
    }
    assert main(command[verb]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert str(file) in error
    assert len(error.splitlines()) == 1
    assert file.read_text() == "mine"
