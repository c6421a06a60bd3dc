"""``coordexp report A B --over KEY``: leads at each value, their change, and what is refused."""

import csv
import gzip
import json
import re
import shutil
from hashlib import sha256
from pathlib import Path
from statistics import fmean

import pytest
from mlflow import MlflowClient

from coordexp.cli.main import main
from coordexp.detection import evaluate_detections
from coordexp.report.published.runs import with_published
from coordexp.report.records.data import ExperimentData, RunRecord, State
from coordexp.report.records.load import load_experiment
from tests.support.report import write_experiment
from tests.unit.report.over.conftest import FEW, GROUPS, KEY, MANY, MIDDLE, SEEDS, edit_fingerprints, set_amount

QUICK = ("--resamples", "60")


def report(runs_dir: Path, *arguments: str, key: str = KEY) -> int:
    return main(["report", "many", "few", "--over", key, "--runs-dir", str(runs_dir), *QUICK, *arguments])


def record(runs_dir: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert report(runs_dir, "--format", "json", *arguments) == 0
    return json.loads(capsys.readouterr().out)


def mean_lead(runs_dir: Path, name: str, boxes: dict[str, str]) -> float:
    """Return AP of B minus AP of A, mean over seeds, by pycocotools."""
    truth = runs_dir / name / "data" / "instances_val.json"
    leads: list[float] = []
    for seed in SEEDS:
        ap = {
            group: evaluate_detections(
                truth, runs_dir / name / f"{group}-s{seed}" / "eval/final/constrained" / f"detections.{kind}.json"
            ).AP
            for group, kind in boxes.items()
        }
        leads.append(ap["B"] - ap["A"])
    return fmean(leads)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("reading", "boxes"),
    [("own", {"A": "argmax", "B": "expected"}), ("argmax", {"A": "argmax", "B": "argmax"})],
)
def test_the_change_is_the_lead_at_the_largest_amount_less_that_at_the_smallest(
    amounts: Path, capsys: pytest.CaptureFixture[str], reading: str, boxes: dict[str, str]
) -> None:
    found = record(amounts, capsys)
    assert found["experiments"] == {"few": FEW, "many": MANY}, "in the order of the amounts, not as they were named"
    assert found["reference"] == "A"
    few, many = (mean_lead(amounts, name, boxes) for name in ("few", "many"))
    leads = {lead["amount"]: lead["difference"] for lead in found["readings"][reading]["leads"]}
    assert leads["few"]["value"] == pytest.approx(few, abs=1e-12)
    assert leads["many"]["value"] == pytest.approx(many, abs=1e-12)
    (change,) = found["readings"][reading]["changes"]
    assert (change["group"], change["first"], change["last"]) == ("B", "few", "many")
    assert change["difference"]["value"] == pytest.approx(many - few, abs=1e-12)
    assert change["difference"]["low"] < many - few < change["difference"]["high"]
    assert change["seeds"] == list(SEEDS)


def test_the_first_line_is_the_interval_of_the_change_and_every_format_has_it(
    amounts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(amounts) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert re.search(r"lead at 2,560 less lead at 160 = \+0\.\d{3} \[\+0\.\d{3}, \+[01]\.\d{3}\]", first)
    assert "own reading" in first
    assert first.endswith("the lead grows.")
    assert "all by argmax" in second
    output = amounts / "many_and_few" / "report"
    for name in ("report.html", "report.md", "report.tex"):
        assert "lead at 2,560 less lead at 160" in (output / name).read_text(), name
    assert (output / "leads.svg").is_file()
    assert (output / "report.html").read_text().count("<svg") == 2, "a chart for each reading"
    with (output / "report.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert {line["kind"] for line in lines} == {"group", "seed", "lead", "change"}
    change = next(line for line in lines if line["kind"] == "change")
    assert (change["value"], change["last_value"]) == (str(FEW), str(MANY))


@pytest.mark.usefixtures("undrawn")
def test_two_seeds_carry_no_claim(amounts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = f"sqlite:///{amounts}/mlflow.db"
    stopped = [run for run in load_experiment(uri, "many").runs if run.seed == 2]
    for run in stopped:
        MlflowClient(uri).set_terminated(run.run_id, status="KILLED")
    found = record(amounts, capsys)
    (change,) = found["readings"]["own"]["changes"]
    assert change["seeds"] == [0, 1]
    assert [sentence.split()[0] for sentence in found["missing"]] == [f"many/{run.name}" for run in stopped]
    assert "two seeds carry no claim" in found["sentences"][0]


@pytest.mark.usefixtures("undrawn")
def test_a_group_that_one_experiment_alone_has_leaves_the_others_as_they_are(
    amounts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = record(amounts, capsys)["readings"]["own"]["changes"]
    uri = f"sqlite:///{amounts}/mlflow.db"
    write_experiment(amounts, "most", groups=("A", "C"), seeds=SEEDS, uri=uri)
    set_amount(amounts / "most", 40_960)
    arguments = ["report", "few", "many", "most", "--over", KEY, "--runs-dir", str(amounts), *QUICK]
    assert main([*arguments, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    after = found["readings"]["own"]["changes"]
    assert [(change["group"], change["last"]) for change in after] == [("B", "many")], "C has a lead at one amount"
    assert after[0]["difference"]["value"] == before[0]["difference"]["value"]
    assert {lead["group"] for lead in found["readings"]["own"]["leads"] if lead["amount"] == "most"} == {"C"}


@pytest.mark.usefixtures("undrawn")
def test_experiments_that_differ_in_anything_else_are_refused_in_one_sentence(
    amounts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_fingerprints(amounts / "many", "training.learning_rate", 0.003)
    assert report(amounts) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for fact in (KEY, "training.learning_rate", "0.003", "0.001", "few", "many", "--allow-differences"):
        assert fact in error, fact
    assert report(amounts, "--allow-differences", "--format", "csv") == 0


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("key", "facts"),
    [
        ("data.shapes.num_trian", ["data.shapes.num_trian", "data.shapes.num_train"]),
        ("data.shapes", ["section", "data.shapes.num_train"]),
        ("data.shapes.num_val", ["null", "many", "few"]),
    ],
)
def test_a_key_that_does_not_tell_experiments_apart_is_refused(
    amounts: Path, capsys: pytest.CaptureFixture[str], key: str, facts: list[str]
) -> None:
    assert report(amounts, key=key) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for fact in facts:
        assert fact in error, fact


@pytest.mark.usefixtures("undrawn")
def test_any_key_of_the_configuration_will_do(amounts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, ordering in (("few", "top_left"), ("many", "random")):
        for config in (amounts / name).glob("*/config.yaml"):
            config.write_text(re.sub("data: .*", f"data: {{ordering: {ordering}}}", config.read_text()))
        for path in (amounts / name).glob("*/fingerprint.json"):
            fingerprint = json.loads(path.read_text())
            fingerprint["config"]["data"] = {"ordering": ordering}
            fingerprint["data"] = "the same"
            path.write_text(json.dumps(fingerprint))
    assert report(amounts, "--format", "json", key="data.ordering") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["experiments"] == {"many": "random", "few": "top_left"}, "in the order of the command"
    assert "lead at top_left less lead at random" in found["sentences"][0]


@pytest.mark.usefixtures("undrawn")
def test_one_experiment_has_nothing_to_be_compared_with(amounts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "many", "--over", KEY, "--runs-dir", str(amounts)]) == 2
    assert "two experiments" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("is_bare", [False, True])
def test_published_results_over_a_key_follow_from_their_detections(
    amounts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_bare: bool
) -> None:
    folder = tmp_path / "published"
    found = record(amounts, capsys, "--publish", str(folder), *(["--without-data"] if is_bare else []))
    numbers = json.loads((folder / "numbers.json").read_text())
    assert numbers["readings"] == found["readings"]
    check = ["report", "--check", str(folder)]
    annotations = amounts / "few" / "data" / "instances_val.json"
    if is_bare:
        assert not (folder / "annotations.json.gz").exists()
        assert sha256(annotations.read_bytes()).hexdigest() in (folder / "README.md").read_text()
        assert main(check) == 2
        check += ["--annotations", str(annotations)]
    capsys.readouterr()
    assert main(check) == 0
    assert "all of which follow" in capsys.readouterr().out

    change = numbers["readings"]["own"]["changes"][0]
    change["difference"]["low"] += 1e-6
    (folder / "numbers.json").write_text(json.dumps(numbers))
    assert main(check) == 2
    assert "readings.own.changes[0].difference.low" in capsys.readouterr().err
    change["difference"]["low"] -= 1e-6
    (folder / "numbers.json").write_text(json.dumps(numbers))
    path = folder / "detections" / "many" / "B-s1.expected.json.gz"
    path.write_bytes(gzip.compress(json.dumps(json.loads(gzip.decompress(path.read_bytes()))[1:]).encode()))
    assert main(check) == 2
    assert "readings.own" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("is_bare", [False, True])
def test_published_results_stand_for_their_experiments(
    amounts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_bare: bool
) -> None:
    write_experiment(amounts, "middle", groups=GROUPS, seeds=SEEDS)
    set_amount(amounts / "middle", MIDDLE)
    options = ["--over", KEY, "--runs-dir", str(amounts), *QUICK, "--format", "json"]
    assert main(["report", "few", "middle", "many", *options]) == 0
    from_runs = json.loads(capsys.readouterr().out)

    folder, both = tmp_path / "published", tmp_path / "both"
    record(amounts, capsys, "--publish", str(folder), *(["--without-data"] if is_bare else []))
    shutil.rmtree(amounts / "many")
    assert main(["report", str(folder), "few", "middle", *options, "--publish", str(both)]) == 0
    assert json.loads(capsys.readouterr().out) == from_runs

    assert main(["report", "--check", str(both)]) == 0
    shutil.rmtree(amounts / "few")
    capsys.readouterr()
    assert main(["report", str(folder), *options]) == (2 if is_bare else 0), "nothing here has the annotations"
    out, err = capsys.readouterr()
    if is_bare:
        assert "annotations" in err
    else:
        assert json.loads(out)["experiments"] == {"few": FEW, "many": MANY}


@pytest.mark.usefixtures("undrawn")
def test_published_results_on_other_annotations_are_refused(
    amounts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "published"
    record(amounts, capsys, "--publish", str(folder), "--without-data")
    write_experiment(amounts, "middle", groups=GROUPS, seeds=SEEDS)
    set_amount(amounts / "middle", MIDDLE)
    annotations = amounts / "middle" / "data" / "instances_val.json"
    annotations.write_text(annotations.read_text() + "\n")
    options = ["--over", KEY, "--runs-dir", str(amounts), *QUICK]
    assert main(["report", str(folder), "middle", *options]) == 2
    assert "not the annotations" in capsys.readouterr().err


def test_a_finished_run_of_this_machine_has_the_word_over_a_published_one() -> None:
    def experiment(where: str, **states: State) -> ExperimentData:
        runs = [RunRecord("", "A", int(seed[1:]), state, run_dir=where) for seed, state in states.items()]
        return ExperimentData("many", uri="", runs=tuple(runs))

    published = experiment("published", s0="finished", s1="finished", s2="finished")
    here = experiment("here", s0="waiting", s1="finished", s2="running", s3="finished", s4="waiting")
    (together,) = with_published([here], [published])
    assert [(run.name, run.run_dir, run.state) for run in together.runs] == [
        ("A-s0", "published", "finished"),
        ("A-s1", "here", "finished"),
        ("A-s2", "published", "finished"),
        ("A-s3", "here", "finished"),
        ("A-s4", "here", "waiting"),
    ]


def test_results_of_one_experiment_lack_what_a_comparison_over_a_key_reads(
    amounts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "numbers.json").write_text(json.dumps({"seeds": {"A": {"0": 0.5}}}))
    assert main(["report", str(folder), "few", "--over", KEY, "--runs-dir", str(amounts)]) == 2
    assert f"{folder} holds one experiment" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_a_group_that_is_read_otherwise_in_one_experiment_is_refused(
    amounts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(amounts, "--reading", "few/B=argmax") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    (option,) = re.findall(r"--reading (\S+)", error)
    assert report(amounts, "--reading", "few/B=argmax", "--reading", option, "--format", "csv") == 0
