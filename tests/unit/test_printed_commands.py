"""What the documents print for a terminal is tried: run where it is quick, parsed where it is not."""

import argparse
import json
import re

import pytest

from coordexp.cli.main import main, parse
from tests.support.commands import DOCUMENTS, ROOT, Block, Command, blocks, lines_not_printed

BLOCKS = [block for path in DOCUMENTS for block in blocks(path)]
QUICK = [block for block in BLOCKS if not block.mark]
# Programs of others, whose arguments are theirs; what is ours is run or parsed.
_OTHERS = {"docker", "export", "helm", "kubectl", "mkdir", "openssl", "prometheus", "ray", ".venv/bin/pre-commit"}
_OTHERS |= {".venv/bin/pip-audit", ".venv/bin/mlflow", "cp"}
_PYTEST = (".venv/bin/python", "-m", "pytest")


def wrong(command: Command) -> str | None:
    """Return what is wrong with a command that is not run; None if nothing is."""
    argv = command.argv
    if argv is not None:
        return _not_parsed(argv, is_cut="..." in command.words)
    program, *words = command.words
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        names = [word.partition("=")[0] for word in words]
        missing = [name for name in names if not re.search(rf"^{name}( \?=|:)", makefile, re.MULTILINE)]
        return f"the Makefile has no {missing[0]}" if missing else None
    if program == "python" and words[0] == "tests/gpu/campaign.py":
        return _not_of_the_campaign(words[1:])
    if program == ".venv/bin/python" and words[0].startswith("examples/"):
        return None if (ROOT / words[0]).is_file() else f"there is no {words[0]}"
    is_known = program in _OTHERS or "=" in program or command.words[:3] == _PYTEST
    return None if is_known else f"{program}: expected coordexp, make, or one of {', '.join(sorted(_OTHERS))}"


def _not_parsed(argv: list[str], *, is_cut: bool) -> str | None:
    try:
        parse(argv)
    except (SystemExit, argparse.ArgumentError):
        return None if is_cut else f"coordexp does not take {' '.join(argv)}"
    return None


def _not_of_the_campaign(words: list[str]) -> str | None:
    text = (ROOT / "tests" / "gpu" / "campaign.py").read_text(encoding="utf-8")
    missing = [word for word in words if word.startswith("--") and f'"{word}"' not in text]
    return f"campaign.py has no {missing[0]}" if missing else None


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.mark], ids=lambda block: block.place)
def test_what_is_not_run_here_is_at_least_parsed(block: Block) -> None:
    problems = [wrong(command) for command in block.commands]
    assert problems, "the block holds a command"
    assert [problem for problem in problems if problem is not None] == []


@pytest.mark.parametrize("block", QUICK, ids=lambda block: block.place)
def test_what_a_page_prints_is_what_comes(
    block: Block, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for command in block.commands:
        assert command.argv is not None, f"{command.words[0]} is run in no test; say why in a comment above the block"
        code = main(command.argv)
        captured = capsys.readouterr()
        is_refused = bool(command.output) and command.output[0].startswith("error: ")
        assert code == (2 if is_refused else 0), captured.err
        assert lines_not_printed(command.output, captured.out + captured.err) == []


def test_the_cells_of_the_notebook_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As one program, but for the cell that trains; what is kept under each is printed, in all but numbers."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MPLBACKEND", "agg")
    notebook = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text(encoding="utf-8"))
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code" and "Popen" not in "".join(cell["source"]):
            lines = (line for line in "".join(cell["source"]).splitlines(keepends=True) if not line.startswith("%"))
            exec(compile("".join(lines), "quickstart.ipynb", "exec"), names)
            kept = "".join(text for output in cell["outputs"] for text in output.get("text", []))
            expected = tuple(line for line in kept.splitlines() if line.strip())
            assert lines_not_printed(expected, capsys.readouterr().out) == []
