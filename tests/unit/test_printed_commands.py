"""What the documents print for a terminal is tried: run where it is quick, parsed where it is not."""

import argparse
import re
from pathlib import Path

import pytest

from coordexp.cli.main import main, parse
from tests.unit.commands_support import DOCUMENTS, ROOT, Block, Command, blocks, lines_not_printed

BLOCKS = [block for path in DOCUMENTS for block in blocks(path)]
QUICK = [block for block in BLOCKS if not block.mark]
# Programs of others, whose arguments are theirs; what is ours is run or parsed.
_OTHERS = {"docker", "export", "helm", "kubectl", "mkdir", "openssl", "prometheus", "ray", ".venv/bin/pre-commit"}
_OTHERS |= {".venv/bin/pip-audit", ".venv/bin/mlflow", "cp"}
_PYTEST = (".venv/bin/python", "-m", "pytest")


def wrong(command: Command) -> str | None:
    """Say what is wrong with a command that is not run; None for nothing."""
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
    assert [found for command in block.commands if (found := wrong(command))] == []


@pytest.mark.parametrize("block", QUICK, ids=lambda block: block.place)
def test_what_a_page_prints_is_what_comes(
    block: Block, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for command in block.commands:
        assert command.argv is not None, f"{command.words[0]} is run in no test; say why in a comment above the block"
        code = main(command.argv)
        said = capsys.readouterr()
        assert code == (2 if command.output and command.output[0].startswith("error: ") else 0), said.err
        assert lines_not_printed(command.output, said.out + said.err) == []


def test_most_of_what_is_printed_is_found() -> None:
    assert len(BLOCKS) > 30
    assert len(QUICK) > 4
    for path in DOCUMENTS:
        fences = re.findall(r"^```(?:console|sh|bash|shell)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert fences == ["```console"] * len(blocks(path)), path


@pytest.mark.parametrize(
    "line",
    [
        "make tables",
        "coordexp ablaton",
        "coordexp report tiny --fromat md",
        "python ray_jobs/ablation.py --confg x",
        "ray job submit --working-dir . -- python ray_jobs/sweep.py --nope",
        "python tests/gpu/campaign.py --cels x",
        "pip install coordexp",
    ],
)
def test_a_command_that_would_fail_is_found(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.commands_support.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"<!-- not run: why -->\n```console\n{line}   # a comment\n```\n", encoding="utf-8")
    (block,) = blocks(page)
    assert (block.mark, block.reason, block.place) == ("not run", "why", "page.md:3")
    assert wrong(block.commands[0])


def test_an_output_differs_in_words_and_not_in_numbers() -> None:
    page = ("A is 0.25 above B, p < 0.001", "...", "group   AP", "A      0.25", "B     \u22120.1")
    came = "A is 0.3 above B, p = 0.2\nA is 0.31 above B, p = 0.5\nx\n\ngroup  AP\nA  1,000\nB  +0.12\n"
    assert lines_not_printed(page, came) == []
    assert lines_not_printed(page, came.replace("above", "below")) == [page[0], *page[2:]]
    assert lines_not_printed((page[4], page[3]), came) == [page[3]], "in another order"
