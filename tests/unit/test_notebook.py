"""docs/quickstart.ipynb: its cells run, and print what is kept under them in all but numbers."""

import json
from pathlib import Path

import pytest

from tests.unit.commands_support import ROOT, lines_not_printed

NOTEBOOK = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text(encoding="utf-8"))
CELLS = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def run(cells: list[dict], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run cells as one program, without what Jupyter alone understands, and return what each prints."""
    names: dict[str, object] = {}
    printed: list[str] = []
    for cell in cells:
        lines = "".join(cell["source"]).splitlines(keepends=True)
        source = "".join(line for line in lines if not line.startswith("%"))
        exec(compile(source, "quickstart.ipynb", "exec"), names)
        printed.append(capsys.readouterr().out)
    return printed


def kept(cell: dict) -> tuple[str, ...]:
    """Return the lines that the notebook keeps under a cell."""
    text = "".join(text for output in cell["outputs"] for text in output.get("text", []))
    return tuple(line for line in text.splitlines() if line.strip())


def _is_slow(cell: dict) -> bool:
    return "Popen" in "".join(cell["source"])


def test_the_quick_cells(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MPLBACKEND", "agg")
    quick = [cell for cell in CELLS if not _is_slow(cell)]
    assert len(quick) == len(CELLS) - 1
    for cell, printed in zip(quick, run(quick, capsys), strict=True):
        assert lines_not_printed(kept(cell), printed) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_ablation(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (cell,) = [cell for cell in CELLS if _is_slow(cell)]
    (printed,) = run([cell], capsys)
    found = "Experiment quickstart: 2 groups x seed 0; 2 runs: 2 finished"
    assert found in printed
    assert found in kept(cell)
    assert (tmp_path / "runs" / "quickstart" / "report" / "report.html").is_file()


def test_nothing_of_a_machine_is_kept() -> None:
    """Paths are those of somebody called me, and no cell has failed."""
    text = json.dumps(NOTEBOOK)
    assert "/home/me/coordexp/runs/quickstart" in text
    assert not any(name in text for name in ('"error"', "/tmp/", "/root/", "\\u001b"))
