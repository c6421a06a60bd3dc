import dataclasses
import gzip
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from coordexp.cli.main import main
from coordexp.errors import ComparisonError, DataError
from coordexp.evaluate.distributions import Distributions
from coordexp.report.publish import NUMBERS, check, publish
from coordexp.report.study.artifacts import FINAL_CONSTRAINED, Artifacts
from coordexp.report.study.study import Study

CONSOLE = Console(file=io.StringIO())


@pytest.fixture
def published(paired: Study, paired_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(paired_dir)
    artifacts = Artifacts(paired.data, cache=tmp_path / "cache", runs_dir=paired_dir)
    curves = paired_dir / "paired" / "C-s0" / FINAL_CONSTRAINED.distributions
    Distributions(1000, 1e-5, ()).write(curves.parent)
    publish(paired, artifacts, tmp_path / "results")
    curves.unlink()  # other tests share the runs
    return tmp_path / "results"


def test_what_is_published_follows_from_its_own_detections(
    published: Path, paired: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads((published / NUMBERS).read_text())
    assert paired.comparison is not None
    assert found["groups"]["C"]["AP"] == paired.comparison.value["C"].value
    assert found["seeds"]["A"]["1"] == paired.comparison.value_by_seed["A"][1].value
    assert paired.decomposition is not None
    lost = paired.decomposition.pairs[0].difference["tide_missed"]
    assert found["decomposition"]["A - B<i>"]["tide_missed"] == [lost.value, lost.low, lost.high]
    assert not any("margin" in name for name in found["decomposition"]["A"]), "no detections say it"
    assert found["computed"] == {"resamples": 60, "seed": 0}
    assert len(list((published / "detections").iterdir())) == len(paired.data.runs)
    (curves,) = (published / "distributions").iterdir()
    assert curves.name == "C-s0.json.gz", "only this run has kept any"
    assert Distributions.read(curves).num_bins == 1000
    assert {path.suffix for path in published.iterdir()} == {".json", ".gz", ".yaml", ".html", ".md", ".svg", ""}
    for name in ("report.html", "report.md"):
        text = (published / name).read_text()
        assert str(Path.cwd()) not in text, "nobody else has this folder"
        assert "sqlite:///mlflow.db" in text
    assert json.loads((published / "fingerprints.json").read_text()).keys() == {run.name for run in paired.data.runs}
    assert main(["report", "--check", str(published)]) == 0
    assert "all of which follow" in capsys.readouterr().out


def test_a_number_or_detection_that_was_changed_is_found(published: Path) -> None:
    numbers = json.loads((published / NUMBERS).read_text())
    pair = next(iter(numbers["pairs"]))
    numbers["pairs"][pair]["p_holm"] += 1e-6
    (published / NUMBERS).write_text(json.dumps(numbers))
    with pytest.raises(ComparisonError, match=f"pairs.{pair}.p_holm is .*but from the detections beside it follows"):
        check(published, CONSOLE)
    numbers["pairs"][pair]["p_holm"] -= 1e-6
    (published / NUMBERS).write_text(json.dumps(numbers))
    assert check(published, CONSOLE) > 30
    numbers["decomposition"]["C"]["mean_iou"][0] += 1e-6
    (published / NUMBERS).write_text(json.dumps(numbers))
    with pytest.raises(ComparisonError, match=r"decomposition.C.mean_iou\[0\] is"):
        check(published, CONSOLE)
    numbers["decomposition"]["C"]["mean_iou"][0] -= 1e-6
    (published / NUMBERS).write_text(json.dumps(numbers))
    path = published / "detections" / "C-s0.json.gz"
    rows = json.loads(gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(json.dumps(rows[1:]).encode()))
    with pytest.raises(ComparisonError, match="groups.C.AP is"):
        check(published, CONSOLE)
    path.unlink()
    with pytest.raises(DataError, match=r"C-s0.json.gz: file not found"):
        check(published, CONSOLE)
    (published / NUMBERS).write_text("{}")
    with pytest.raises(DataError, match=r"numbers.json: expected the numbers of published results"):
        check(published, CONSOLE)


def test_only_what_is_whole_is_published(paired: Study, paired_dir: Path, tmp_path: Path) -> None:
    first, *others = paired.data.runs
    data = dataclasses.replace(paired.data, runs=(dataclasses.replace(first, state="failed"), *others))
    artifacts = Artifacts(data, cache=tmp_path / "cache", runs_dir=paired_dir)
    with pytest.raises(ComparisonError, match="is not whole, and so not published"):
        publish(dataclasses.replace(paired, data=data), artifacts, tmp_path / "results")
    assert not (tmp_path / "results").exists()
