import gzip
import json
import re
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from coordexp.cli.main import main
from coordexp.data.units import UnitRule
from coordexp.errors import ComparisonError, DataError
from coordexp.evaluate.distributions import Distributions
from coordexp.report.make_study import make_study
from coordexp.report.published.check import check
from coordexp.report.published.folder import NUMBERS, copy_from_here
from coordexp.report.published.publish import publish
from coordexp.report.records.artifacts import FINAL_CONSTRAINED, Artifacts
from coordexp.report.records.load import load_experiment
from coordexp.report.study.inputs import Settings
from coordexp.report.study.study import Study
from tests.support.report import write_experiment


@pytest.fixture(scope="module")
def plain_dir(migrated_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``paired_dir``, but every group has a name that a configuration could give it."""
    runs_dir = tmp_path_factory.mktemp("plain")
    shutil.copy(migrated_database, runs_dir / "mlflow.db")
    write_experiment(runs_dir, groups=("A", "B", "C"), seeds=(0, 1))
    return runs_dir


@pytest.fixture(scope="module")
def plain(plain_dir: Path) -> Study:
    data = load_experiment(f"sqlite:///{plain_dir}/mlflow.db", "paired")
    artifacts = Artifacts(data, cache=plain_dir / "cache", runs_dir=plain_dir)
    return make_study(data, artifacts, Settings(resamples=60, num_pictures=6))


@pytest.fixture(scope="module")
def published_once(plain: Study, plain_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    artifacts = Artifacts(plain.data, cache=folder / "cache", runs_dir=plain_dir)
    curves = plain_dir / "paired" / "C-s0" / FINAL_CONSTRAINED.distributions
    Distributions(1000, 1e-5, ()).write(curves.parent)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(plain_dir)
        publish(plain, artifacts, folder / "results")
    return folder / "results"


@pytest.fixture
def published(published_once: Path, plain_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to change, looked at from where it was published: drawing the report again takes seconds."""
    monkeypatch.chdir(plain_dir)
    return shutil.copytree(published_once, tmp_path / "results")


def test_what_is_published_follows_from_its_own_detections(
    published: Path, plain: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads((published / NUMBERS).read_text())
    assert plain.comparison is not None
    assert found["groups"]["C"]["AP"] == plain.comparison.value["C"].value
    assert found["seeds"]["A"]["1"] == plain.comparison.value_by_seed["A"][1].value
    assert plain.decomposition is not None
    lost = plain.decomposition.pairs[0].difference["tide_missed"]
    assert found["decomposition"]["A - B"]["tide_missed"] == [lost.value, lost.low, lost.high]
    assert not any("margin" in name for name in found["decomposition"]["A"]), "no detections say it"
    assert found["computed"] == {"resamples": 60, "seed": 0}
    assert len(list((published / "detections").iterdir())) == len(plain.data.runs)
    (curves,) = (published / "distributions").iterdir()
    assert curves.name == "C-s0.json.gz", "only this run has kept any"
    assert Distributions.read(curves).num_bins == 1000
    assert {path.suffix for path in published.iterdir()} == {".json", ".gz", ".yaml", ".html", ".md", ".svg", ""}
    for name in ("report.html", "report.md"):
        text = (published / name).read_text()
        assert str(Path.cwd()) not in text, "nobody else has this folder"
        assert "sqlite:///mlflow.db" in text
    assert json.loads((published / "fingerprints.json").read_text()).keys() == {run.name for run in plain.data.runs}
    assert main(["report", "--check", str(published)]) == 0
    assert "all of which follow" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "published_as"),
    [
        ("{here}/runs/x", "runs/x"),
        ("{beside}/debris/train.json", "../debris/train.json"),
        ("sqlite:///{here}/runs/mlflow.db", "sqlite:///runs/mlflow.db"),
        ("/data{beside}/debris", "/data{beside}/debris"),
        ("https://example.org/a", "https://example.org/a"),
    ],
)
def test_paths_are_published_from_where_the_command_was_started(
    path: str, published_as: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "project"
    here.mkdir()
    monkeypatch.chdir(here)
    source, target = tmp_path / "config.yaml", tmp_path / "copy.yaml"
    source.write_text(f"path: {path}\n".format(here=here, beside=tmp_path))
    copy_from_here(source, target)
    assert target.read_text() == f"path: {published_as}\n".format(beside=tmp_path)


def test_at_the_root_no_path_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    source, target = tmp_path / "config.yaml", tmp_path / "copy.yaml"
    source.write_text("images: /data/debris, https://example.org/a")
    copy_from_here(source, target)
    assert target.read_text() == source.read_text()


def test_a_number_or_detection_that_was_changed_is_found(published: Path) -> None:
    numbers = json.loads((published / NUMBERS).read_text())
    pair = next(iter(numbers["pairs"]))
    numbers["pairs"][pair]["p_holm"] += 1e-6
    (published / NUMBERS).write_text(json.dumps(numbers))
    with pytest.raises(ComparisonError, match=re.escape(f"pairs.{pair}.p_holm")):
        check(published)
    numbers["pairs"][pair]["p_holm"] -= 1e-6
    (published / NUMBERS).write_text(json.dumps(numbers))
    assert check(published) > 30
    numbers["decomposition"]["C"]["mean_iou"][0] += 1e-6
    (published / NUMBERS).write_text(json.dumps(numbers))
    with pytest.raises(ComparisonError, match=r"decomposition.C.mean_iou\[0\]"):
        check(published)
    numbers["decomposition"]["C"]["mean_iou"][0] -= 1e-6
    (published / NUMBERS).write_text(json.dumps(numbers))
    path = published / "detections" / "C-s0.json.gz"
    rows = json.loads(gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(json.dumps(rows[1:]).encode()))
    with pytest.raises(ComparisonError, match=r"groups\.C\.AP"):
        check(published)
    path.unlink()
    with pytest.raises(DataError, match=r"C-s0\.json\.gz"):
        check(published)
    (published / NUMBERS).write_text("{}")
    with pytest.raises(DataError, match=r"numbers\.json"):
        check(published)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda n: n["computed"].update(resamples=-5),
            "computed.resamples",
        ),
        (lambda n: n.update(more={"AP": 1}), "more.AP"),
        (lambda n: n["seeds"].update({"../../x": {"0": 0.5}}), "seeds.../../x."),
        (lambda n: n["groups"].update(A={}), "groups.A.AP"),
        (lambda n: n.update(pairs={}), "pairs.A - B.difference"),
    ],
)
def test_numbers_that_are_too_much_too_few_or_lead_elsewhere_are_refused(
    change: Callable[[dict[str, dict[str, object]]], object], said: str, published: Path
) -> None:
    numbers = json.loads((published / NUMBERS).read_text())
    change(numbers)
    (published / NUMBERS).write_text(json.dumps(numbers))
    with pytest.raises((DataError, ComparisonError)) as error:
        check(published)
    assert said in str(error.value)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 400


def test_published_units_are_drawn_again(plain: Study, plain_dir: Path, tmp_path: Path, monkeypatch) -> None:
    artifacts = Artifacts(plain.data, cache=tmp_path / "cache", runs_dir=plain_dir)
    rule = r"(\d)\.jpg"  # the last digit of 14 names: ten units
    study = make_study(plain.data, artifacts, Settings(resamples=40, num_pictures=0, unit_by=UnitRule.parse(rule)))
    Distributions(1000, 1e-5, ()).write((plain_dir / "paired" / "C-s0" / FINAL_CONSTRAINED.distributions).parent)
    monkeypatch.chdir(plain_dir)
    publish(study, artifacts, tmp_path / "results")
    found = json.loads((tmp_path / "results" / NUMBERS).read_text())
    assert found["computed"] == {"resamples": 40, "seed": 0, "unit_by": rule}
    assert found["sample"] == {"images": 14, "units": 10}
    assert check(tmp_path / "results") > 100
    del found["computed"]["unit_by"]
    (tmp_path / "results" / NUMBERS).write_text(json.dumps(found))
    with pytest.raises(ComparisonError, match=r"numbers\.json: "):
        check(tmp_path / "results")


def test_results_without_data_are_checked_against_the_annotations_that_are_given(
    plain: Study, plain_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(plain_dir)
    folder = tmp_path / "bare"
    artifacts = Artifacts(plain.data, cache=tmp_path / "cache", runs_dir=plain_dir)
    assert plain.gallery, "there are pictures to leave out"
    publish(plain, artifacts, folder, without_data=True)

    assert not (folder / "annotations.json.gz").exists()
    assert "data:image/jpeg" not in (folder / "report.html").read_text()
    annotations = plain_dir / "paired" / "data" / "instances_val.json"
    digest = sha256(annotations.read_bytes()).hexdigest()
    readme = (folder / "README.md").read_text()
    assert digest in readme
    assert "instances_val.json" in readme
    assert "--annotations FILE" in readme

    assert main(["report", "--check", str(folder)]) == 2
    assert "--annotations FILE" in capsys.readouterr().err
    packed = tmp_path / "val.json.gz"
    packed.write_bytes(gzip.compress(annotations.read_bytes()))
    for given in (annotations, packed):
        assert main(["report", "--check", str(folder), "--annotations", str(given)]) == 0
        assert "all of which follow" in capsys.readouterr().out
    other = tmp_path / "other.json"
    other.write_text(annotations.read_text() + "\n")
    assert main(["report", "--check", str(folder), "--annotations", str(other)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for fact in (str(other), digest[:12], sha256(other.read_bytes()).hexdigest()[:12]):
        assert fact in error

    path = folder / "detections" / "C-s0.json.gz"
    rows = json.loads(gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(json.dumps(rows[1:]).encode()))
    with pytest.raises(ComparisonError, match=r"groups\.C\.AP"):
        check(folder, annotations=annotations)


def test_annotations_that_are_given_beside_published_ones_must_be_the_same(published: Path, plain_dir: Path) -> None:
    annotations = plain_dir / "paired" / "data" / "instances_val.json"
    assert check(published, annotations=annotations) > 30
    other = published / "other.json"
    other.write_text(annotations.read_text() + "\n")
    with pytest.raises(DataError, match=r"other\.json"):
        check(published, annotations=other)


@pytest.mark.parametrize(
    "options", [["--without-data"], ["--annotations", "val.json"], ["--over", "data.ordering", "--store"]]
)
def test_options_without_their_verb_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "paired", *options]) == 2
    assert options[0] in capsys.readouterr().err
