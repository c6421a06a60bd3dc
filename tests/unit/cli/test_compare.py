"""``coordexp compare``: the report of an experiment, made of COCO results files alone."""

import gzip
import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from coordexp.cli.main import main as coordexp
from coordexp.detection import evaluate_detections
from coordexp.statistics import paired_bootstrap
from tests.support.report import write_data, write_evaluation

QUICK = ["--resamples", "60", "--all"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pictures, ground truth, and the detections of four detectors."""
    folder = tmp_path_factory.mktemp("detectors")
    annotations = write_data(folder)
    for name, off, missed in (("good", 1.0, 0.05), ("fair", 5.0, 0.2), ("poor", 12.0, 0.4), ("other", 5.0, 0.3)):
        write_evaluation(folder / name, annotations, off_px=off, missed=missed, seed=len(name))
        (folder / name / "detections.expected.json").rename(folder / f"{name}.json")
    return folder


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def compare(data: Path, *argv: str) -> int:
    return coordexp(["compare", "--annotations", str(data / "instances_val.json"), *QUICK, *argv])


def numbers(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("undrawn")
def test_the_numbers_are_those_of_the_paired_bootstrap_and_nothing_else_is_printed(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("good", "fair", "poor")
    assert compare(data, *(f"{name}={data}/{name}.json" for name in names), "--format", "json", "--seed", "3") == 0
    report = numbers(capsys)
    files = {name: data / f"{name}.json" for name in names}
    expected = paired_bootstrap(data / "instances_val.json", files, resamples=60, seed=3)
    assert list(report) == ["groups", "pairs"]
    assert list(report["pairs"]) == ["good - fair", "good - poor", "fair - poor"]
    for name in names:
        group = report["groups"][name]
        assert group["AP"] == expected.ap[name]
        assert tuple(group["interval"]) == expected.interval[name]
        official = evaluate_detections(data / "instances_val.json", files[name])
        assert group["AP50"] == pytest.approx(official.AP50, abs=1e-12)
        assert group["AR100"] == pytest.approx(official.AR100, abs=1e-12)
    for name, pair in report["pairs"].items():
        difference = expected.difference[tuple(name.split(" - "))]
        assert (pair["difference"], *pair["interval"]) == (difference.value, difference.low, difference.high)
        assert pair["p_bootstrap"] == pytest.approx(difference.p, rel=1e-12)
        assert pair["p_holm"] >= max(pair["p_swap"], pair["p_bootstrap"])


def test_the_report_is_that_of_an_experiment_without_what_only_training_has(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [f"a b={data}/good.json,{data}/fair.json", f"c={data}/poor.json,{data}/other.json"]
    assert compare(data, *files, "--images", str(data / "val"), "--pictures", "3", "--output", "out") == 0
    said = capsys.readouterr().out.replace("docs/reading-a-report.md", "")
    assert "Comparison of a b and c: 2 detectors, 4 files of detections" in said
    for absent in ("Training", "training", "loss", "mlflow", "reading", "Free decoding", "fingerprint", "checkpoint"):
        assert absent not in said
    assert "Differences of AP on the same images" in said
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("data:image/jpeg") == 3
    for section in ("Result", "Boxes", "Images", "Files"):
        assert f">{section}</h2>" in page
    for section in ("Training", "Fairness", "Free decoding"):
        assert f">{section}</h2>" not in page
    for chart in ("AP by size of the object", "AP by category", "AP by number of objects", "Calibration"):
        assert chart in page
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"report.md", "report.csv", "report.tex", "differences.svg", "iou.png", "calibration.png"} <= written
    assert not {"losses.png", "ap.png"} & written


@pytest.mark.usefixtures("undrawn")
def test_a_packed_file_and_one_with_names_for_categories_are_the_same(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = json.loads((data / "fair.json").read_text())
    names = {c["id"]: c["name"] for c in json.loads((data / "instances_val.json").read_text())["categories"]}
    named = [{"category_name": names[entry.pop("category_id")].upper(), **entry} for entry in entries]
    (tmp_path / "named.json").write_text(json.dumps(named))
    (tmp_path / "packed.json.gz").write_bytes(gzip.compress((data / "fair.json").read_bytes()))
    assert compare(data, f"a={data}/fair.json", "b=named.json", "--format", "json") == 0
    groups = numbers(capsys)["groups"]
    assert compare(data, "c=packed.json.gz", "--format", "json") == 0
    assert groups["a"] == groups["b"] == numbers(capsys)["groups"]["c"]
    assert compare(data, f"a={data}/fair.json", "c=packed.json.gz") == 2
    assert "packed.json.gz and" in capsys.readouterr().err, "packing makes no other detector"


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("is_packed", [True, False])
def test_the_printed_command_gives_the_ap_again(
    is_packed: bool, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = data / "instances_val.json"
    if is_packed:
        truth = tmp_path / "packed truth.json.gz"
        truth.write_bytes(gzip.compress((data / "instances_val.json").read_bytes()))
    assert coordexp(["compare", "--annotations", str(truth), *QUICK, f"a={data}/fair.json", "--output", "out"]) == 0
    said = capsys.readouterr().out
    command = said.partition("AP of a-s0 again, by pycocotools alone:\n")[2].partition("\n\n")[0]
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (ap,) = re.findall(r"Average Precision .*IoU=0\.50:0\.95 \| area=   all \| maxDets=100 \] = (0\.\d+)", done.stdout)
    assert float(ap) == pytest.approx(
        json.loads((tmp_path / "out" / "report.json").read_text())["groups"]["a"]["mean"]["constrained/expected/AP"],
        abs=5e-4,
    )


@pytest.mark.usefixtures("undrawn")
def test_no_detection_is_an_ap_of_0_that_is_said(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.json").write_text("[]")
    moved = [{**entry, "bbox": [-300, -300, 5, 5]} for entry in json.loads((data / "fair.json").read_text())]
    Path("moved.json").write_text(json.dumps(moved))
    assert compare(data, "none=empty.json", "moved=moved.json", f"good={data}/good.json") == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "empty.json holds no detection" in output
    assert f"moved.json: none of its {len(moved)} boxes" in output
    assert compare(data, "none=empty.json", f"good={data}/good.json", "--format", "json") == 0
    captured = capsys.readouterr()
    assert "note: empty.json holds no detection" in " ".join(captured.err.split())
    json.loads(captured.out)


@pytest.mark.parametrize(
    ("argv", "facts"),
    [
        (["a={data}/fair.json", "b={data}/fair.json"], ["{data}/fair.json", "same"]),
        (["a={data}/fair.json", "a={data}/good.json"], ["'a'", "NAME=FILE,FILE"]),
        (["a={data}/fair.json", "{data}/good.json"], ["{data}/good.json", "NAME=FILE"]),
        (["a={data}/fair.json,"], ["{data}/fair.json,", "NAME=FILE"]),
        (["a=nowhere.json"], ["nowhere.json", "not found"]),
        (["a=nothing.json"], ["nothing.json: line 1 column 1", "JSON"]),
        (["a=half.json.gz"], ["half.json.gz", "gzip"]),
        (["a={data}/instances_val.json"], ["{data}/instances_val.json", "score"]),
        (["a={data}/fair.json", "--output", "nothing.json"], ["nothing.json"]),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(
    argv: list[str], facts: list[str], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("nothing.json").write_text("")
    Path("half.json.gz").write_bytes(gzip.compress((data / "fair.json").read_bytes())[:200])
    assert compare(data, *(text.format(data=data) for text in argv)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for fact in facts:
        assert fact.format(data=data) in error


@pytest.mark.usefixtures("undrawn")
def test_a_comma_belongs_to_a_name_that_exists_and_else_parts_seeds(data: Path, tmp_path: Path, capsys) -> None:
    for name, source in (("fair, 2.json", "fair"), ("good.json", "good"), ("poor.json", "poor")):
        (tmp_path / name).write_bytes((data / f"{source}.json").read_bytes())
    assert compare(data, "a=fair, 2.json", f"b={data}/good.json", "--format", "json") == 0
    expected = evaluate_detections(data / "instances_val.json", data / "fair.json").AP
    assert numbers(capsys)["groups"]["a"]["AP"] == pytest.approx(expected, abs=1e-9)
    assert compare(data, "a=fair, 2.json,good.json", f"b=poor.json,{data}/other.json", "--output", "out") == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {name: len(group["runs"]) for name, group in report["groups"].items()} == {"a": 2, "b": 2}
    assert compare(data, "a=good.json,nowhere.json") == 2
    assert "nowhere.json: " in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_aliases_and_a_folder_of_a_file_a_category(data: Path, tmp_path: Path, capsys) -> None:
    truth = json.loads((data / "instances_val.json").read_text())
    files = {image["id"]: Path(image["file_name"]).stem for image in truth["images"]}
    names = {category["id"]: category["name"] for category in truth["categories"]}
    aliases = {f"kind {key}": name for key, name in names.items()}
    (tmp_path / "aliases.json").write_text(json.dumps(aliases))
    lines: dict[int, list[str]] = {key: [] for key in names}
    for entry in json.loads((data / "fair.json").read_text()):
        x, y, width, height = entry["bbox"]
        numbers_of_line = (entry["score"], x, y, x + width, y + height)
        lines[entry["category_id"]].append(" ".join(map(str, (files[entry["image_id"]], *numbers_of_line))))
    (tmp_path / "voc").mkdir()
    for key, texts in lines.items():
        (tmp_path / "voc" / f"comp4_det_val_kind {key}.txt").write_text("\n".join(texts))
    argv = ["fair=voc", "--format", "json"]
    assert compare(data, *argv) == 2
    assert "--aliases FILE" in capsys.readouterr().err
    assert compare(data, *argv, "--aliases", "aliases.json") == 0
    expected = evaluate_detections(data / "instances_val.json", data / "fair.json").AP
    assert numbers(capsys)["groups"]["fair"]["AP"] == pytest.approx(expected, abs=1e-6)
    (tmp_path / "aliases.json").write_text(json.dumps({"kind 1": "no such name"}))
    assert compare(data, *argv, "--aliases", "aliases.json") == 2
    assert "'no such name'" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_doctor_boxes_refuses_what_compare_refuses_and_says_what_it_says(data: Path, tmp_path: Path, capsys) -> None:
    entries = json.loads((data / "fair.json").read_text())
    x, y, width, height = entries[3]["bbox"]
    swapped = [*entries[:3], {**entries[3], "bbox": [x + width, y, -width, height]}, *entries[4:]]
    unknown = [*entries, {**entries[0], "category_id": 99}]
    for name, rows in (("swapped", swapped), ("unknown", unknown)):
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    doctor = ["doctor", "boxes", "--annotations", str(data / "instances_val.json")]
    assert coordexp([*doctor, "swapped.json"]) == 0
    remark = f"swapped.json: 1 of {len(entries)} boxes"
    assert remark in said_of(capsys)
    assert compare(data, "a=swapped.json", "--format", "json") == 0
    out, err = capsys.readouterr()
    assert remark in " ".join(err.split())
    expected = evaluate_detections(data / "instances_val.json", data / "fair.json").AP
    assert json.loads(out)["groups"]["a"]["AP"] == pytest.approx(expected, abs=1e-9)
    for command in ([*doctor, "unknown.json"], ["compare", *doctor[2:], "a=unknown.json"]):
        assert coordexp(command) == 2
        error = capsys.readouterr().err
        assert "unknown.json" in error
        assert "category_id 99 " in error


@pytest.mark.usefixtures("undrawn")
def test_a_bare_ground_truth_does(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without sizes, areas and iscrowd, as tools for boxes alone write it."""
    truth = json.loads((data / "instances_val.json").read_text())
    for annotation in truth["annotations"]:
        del annotation["area"], annotation["iscrowd"]
    for image in truth["images"]:
        del image["width"], image["height"]
    (tmp_path / "instances_val.json").write_text(json.dumps(truth))
    assert compare(tmp_path, f"a={data}/fair.json", "--format", "json") == 0
    assert compare(data, f"a={data}/fair.json", "--format", "json") == 0
    bare, whole = (json.loads(text) for text in capsys.readouterr().out.replace("}\n{", "}\0{").split("\0"))
    assert bare == whole


def test_help_is_quick_and_no_model_library_is_read(data: Path) -> None:
    code = (
        "import sys; from coordexp.cli.main import main\n"
        f"assert main({['compare', f'a={data}/fair.json', f'b={data}/good.json', *QUICK]!r}\n"
        f"    + ['--annotations', {str(data / 'instances_val.json')!r}, '--images', {str(data / 'val')!r}]) == 0\n"
        "heavy = {'torch', 'transformers', 'mlflow', 'ray', 'peft', 'accelerate', 'deepspeed', 'optuna'}\n"
        "print(heavy & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "coordexp", "compare", "--help"], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Of the processor: a busy machine may take any time.
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < 1.0


@pytest.mark.ci
def test_a_closed_pipe_is_no_error_and_the_files_are_there(data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "coordexp", "compare", "--annotations", str(data / "instances_val.json")]
    command += [f"A={data / 'good.json'}", f"B={data / 'fair.json'}", "--resamples=50", "--pictures=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()  # before anything is written, as `head -0` does
        _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert b"Traceback" not in said
    assert (tmp_path / "comparison" / "report.html").stat().st_size > 0
    assert list((tmp_path / "comparison").glob("*.png"))


def said_of(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("undrawn")
def test_a_file_of_a_part_of_the_images_is_said_with_ap_on_the_common_ones(data: Path, tmp_path: Path, capsys) -> None:
    entries = json.loads((data / "fair.json").read_text())
    halves = [[entry for entry in entries if (entry["image_id"] <= 7) == first] for first in (True, False)]
    for name, half in zip(("first", "second"), halves, strict=True):
        (tmp_path / f"{name}.json").write_text(json.dumps(half))
    assert compare(data, f"good={data}/good.json", "first=first.json") == 0
    said = said_of(capsys)
    truth = json.loads((data / "instances_val.json").read_text())
    truth["images"] = [image for image in truth["images"] if image["id"] <= 7]
    truth["annotations"] = [found for found in truth["annotations"] if found["image_id"] <= 7]
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    good = [entry for entry in json.loads((data / "good.json").read_text()) if entry["image_id"] <= 7]
    (tmp_path / "good.json").write_text(json.dumps(good))
    ap = [evaluate_detections(tmp_path / "truth.json", tmp_path / name).AP for name in ("good.json", "first.json")]
    assert "7 of 14 images" in said
    assert f"good {ap[0]:.4f}, first {ap[1]:.4f}" in said, "AP on the images where both have boxes"
    assert compare(data, "first=first.json", "second=second.json") == 0
    assert "no image on which all have boxes" in said_of(capsys)
    assert compare(data, f"good={data}/good.json", f"fair={data}/fair.json") == 0
    assert " of 14 images" not in said_of(capsys)


@pytest.mark.usefixtures("undrawn")
def test_the_order_of_equal_scores_makes_no_winner(data: Path, tmp_path: Path, capsys) -> None:
    found = [entry for name in ("good", "poor") for entry in json.loads((data / f"{name}.json").read_text())]
    entries = [{**entry, "score": 1.0} for entry in found]
    truth = json.loads((data / "instances_val.json").read_text())["annotations"]

    def off(entry: dict) -> float:
        boxes = [box["bbox"] for box in truth if box["image_id"] == entry["image_id"]]
        return min(sum(abs(a - b) for a, b in zip(entry["bbox"], box, strict=True)) for box in boxes)

    (tmp_path / "best.json").write_text(json.dumps(sorted(entries, key=off)))
    (tmp_path / "worst.json").write_text(json.dumps(sorted(entries, key=off, reverse=True)))
    some = [{**entry, "score": (0.9, 0.8, 0.95)[place % 3]} for place, entry in enumerate(sorted(entries, key=off))]
    (tmp_path / "some.json").write_text(json.dumps(some))
    (tmp_path / "turned.json").write_text(json.dumps(some[::-1]))
    by_order = [evaluate_detections(data / "instances_val.json", tmp_path / f"{n}.json").AP for n in ("best", "worst")]
    assert by_order[0] - by_order[1] > 0.01
    assert compare(data, "a=best.json", "b=worst.json") == 0
    said = said_of(capsys)
    assert "No difference of AP can be shown" in said
    assert f"best.json: {len(entries)} of {len(entries)} boxes share a score" in said
    for pair in (("a=best.json", "b=worst.json"), ("a=some.json", "b=turned.json")):
        assert compare(data, *pair, "--format", "json") == 0
        assert numbers(capsys)["pairs"]["a - b"]["difference"] == 0


@pytest.mark.usefixtures("undrawn")
def test_unequal_numbers_of_files_keep_their_seeds_and_are_not_paired(data: Path, tmp_path: Path, capsys) -> None:
    assert compare(data, f"two={data}/good.json,{data}/fair.json", f"one={data}/poor.json", "--output", "out") == 0
    said = said_of(capsys)
    assert "two 2, one 1" in said
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {name: [run["seed"] for run in group["runs"]] for name, group in report["groups"].items()} == {
        "two": [0, 1],
        "one": [0],
    }


@pytest.mark.usefixtures("undrawn")
def test_three_images_give_no_interval_and_no_word_about_frames(data: Path, tmp_path: Path, capsys) -> None:
    truth = json.loads((data / "instances_val.json").read_text())
    truth["images"], ids = truth["images"][:3], {1, 2, 3}
    truth["annotations"] = [found for found in truth["annotations"] if found["image_id"] in ids]
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    for name in ("good", "poor"):
        entries = [entry for entry in json.loads((data / f"{name}.json").read_text()) if entry["image_id"] in ids]
        (tmp_path / f"{name}.json").write_text(json.dumps(entries))
    argv = ["compare", "--annotations", "truth.json", *QUICK, "good=good.json", "poor=poor.json"]
    assert coordexp([*argv, "--format", "json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["groups"]["good"]["interval"] == found["pairs"]["good - poor"]["interval"] == [None, None]
    assert "--frame" not in err
    assert "no reading" not in err
    assert coordexp(argv) == 0
    assert "From 3 images" in said_of(capsys)


@pytest.mark.usefixtures("undrawn")
def test_engines_that_differ_are_a_caution_and_what_they_share_is_one_line(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"engine": "vllm", "version": "0.11", "precision": "bfloat16"}
    for name, precision in (("good", "bfloat16"), ("fair", "float32")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "boxes.json").write_bytes((data / f"{name}.json").read_bytes())
        (folder / "generated_by.json").write_text(json.dumps(record | {"precision": precision}))
    rows = [f"{name}={tmp_path}/{name}/boxes.json" for name in ("good", "fair")]
    annotations = ["--annotations", str(data / "instances_val.json"), "--resamples", "60"]
    assert coordexp(["compare", *annotations, *rows, f"other={data}/other.json"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "vllm, version 0.11" in text
    assert "bfloat16 (good), float32 (fair)" in text
    assert re.search(r"[Nn]ot known [^.]*\bother\b", text)

    (tmp_path / "fair" / "generated_by.json").write_text("{")
    assert coordexp(["compare", *annotations, *rows]) == 0
    assert str(tmp_path / "fair" / "generated_by.json") in "".join(capsys.readouterr().out.split())
