"""Numbers that libraries do not take, and places that cannot be made, end in one sentence before any work begins."""

from pathlib import Path

import pytest

from coordexp.cli.main import main
from coordexp.data.sources.shapes import ShapesSpec, write_shapes


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
