import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordexp.errors import TrackingError
from coordexp.report.__main__ import main


@pytest.fixture(autouse=True)
def _no_uri_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_it_prints_the_table_and_writes_the_pictures(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["single", "--tracking-uri", uri, "--output", str(tmp_path)]) == 0
    assert "Experiment single" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ap.png", "losses.png", "report.md"]


def test_the_database_of_the_runs_directory_is_the_default(
    database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--runs-dir", str(database.parent), "--output", str(tmp_path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["experiment"] == "tiny"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    assert main(["single", "--runs-dir", str(tmp_path / "elsewhere"), "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("experiment,group,seed")
    assert (tmp_path / "elsewhere" / "single" / "report" / "losses.png").is_file()


def test_user_errors_are_one_sentence_and_exit_code_2(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--runs-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: there is no MLflow database at {tmp_path}/mlflow.db")
    assert main(["tinny", "--tracking-uri", uri]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "it has: empty, single, tiny" in captured.err
    (tmp_path / "file").write_text("")
    assert main(["tiny", "--tracking-uri", uri, "--output", str(tmp_path / "file" / "x"), "--format", "csv"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_debug_shows_the_traceback(uri: str) -> None:
    with pytest.raises(TrackingError):
        main(["tinny", "--tracking-uri", uri, "--debug"])


@pytest.mark.slow
def test_the_module_runs_and_says_nothing_but_the_report(database: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coordexp.report", "tiny", "--runs-dir", str(database.parent)]
    done = subprocess.run(
        [*command, "--output", str(tmp_path)], capture_output=True, text=True, env=os.environ | {"COLUMNS": "100"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Free decoding" in done.stdout
