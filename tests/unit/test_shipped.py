"""Which configuration file a person means, wherever the command is typed."""

import sys
from pathlib import Path

import pytest

from coordexp.errors import ConfigError
from coordexp.shipped import command, find_experiment, shipped_experiments


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["tiny", "tiny.yaml", "experiments/tiny.yaml", "experiments/tiny"])
def test_what_comes_with_coordexp_is_found_in_an_empty_folder(name: str) -> None:
    assert find_experiment(Path(name)) == shipped_experiments() / "tiny.yaml"


@pytest.mark.parametrize("name", ["lambda_coord", "sweeps/lambda_coord.yaml", "experiments/sweeps/lambda_coord.yaml"])
def test_a_sweep_is_found_by_its_name(name: str) -> None:
    assert find_experiment(Path(name), folder="sweeps") == shipped_experiments() / "sweeps" / "lambda_coord.yaml"


@pytest.mark.parametrize("name", ["tinny.yaml", "other/tiny.yaml", "../experiments/tiny.yaml", "experiments/../tiny"])
def test_what_is_nowhere_is_one_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match=r"\btiny\b"):
        find_experiment(Path(name))


def test_a_printed_command_is_quoted_and_names_a_program_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "env" / "bin"
    programs.mkdir(parents=True)
    python = programs / "python"
    python.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", "")
    assert command("report", "a b") == "env/bin/python -m coordexp report 'a b'"
    (programs / "coordexp").touch(mode=0o755)
    assert command("report", "a b") == "env/bin/coordexp report 'a b'"
    monkeypatch.setenv("PATH", str(programs))
    assert command("report", Path("x")) == "coordexp report x"
    monkeypatch.chdir(programs)
    monkeypatch.setenv("PATH", "")
    assert command("report") == "./coordexp report"
