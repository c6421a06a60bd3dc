"""``coordexp prepare coco | lvis | shapes``: what a person types and sees."""

import json
import shlex
from pathlib import Path

from coordexp.cli.main import main
from coordexp.config.schema.data import Data
from coordexp.data.sources.door import load_split
from tests.support.samples import read_jsonl


def arguments(coco, *more, what="coco"):
    files = ["--annotations", coco.annotations, "--images", coco.images, "--output", coco.root / "out"]
    return ["prepare", what, *map(str, files), *more]


def test_the_table_and_the_next_command(coco, capsys):
    coco.document["annotations"][0]["bbox"] = [-5, 20, 30, 20]
    coco.document["annotations"][1]["iscrowd"] = 1
    coco.save()
    assert main(arguments(coco)) == 0
    out, err = capsys.readouterr()
    assert err == ""  # a progress bar belongs on a terminal
    rows = dict(line.strip("│ ").rsplit("│", 1) for line in out.splitlines() if line.startswith("│"))
    found = {name.strip(): value.strip() for name, value in rows.items()}
    assert found["images"] == found["annotations"] == found["categories"] == "2"
    assert found["targets"] == found["crowds, kept apart"] == found["targets cut at the image border"] == "1"
    assert found["rejected images"] == "0"
    # COCO keeps the 30 px of the box, 5 of them outside the image: what is inside has IoU .83.
    assert found["codec ceiling, AP of the quantised truth"] == "0.7000"
    assert "ignored, kept apart" not in found
    last = out.splitlines()[-1]
    assert last.startswith("next: ")
    assert "coordexp train --config " in last
    words = shlex.split(last.removeprefix("next: "))
    assert words[-2:] == [f"data.train_annotations={coco.root}/out/samples.jsonl", f"data.train_images={coco.images}"]
    assert main(arguments(coco)) == 0
    first_line = capsys.readouterr().out.splitlines()[0]
    assert first_line.startswith(f"{coco.root}/out: already")


def test_what_looks_wrong_with_a_whole_file_is_said_each_time(tmp_path, capsys):
    examples = Path(__file__).parents[3] / "examples" / "coco_tiny"
    document = json.loads((examples / "annotations" / "instances_train.json").read_text(encoding="utf-8"))
    for annotation in document["annotations"]:
        annotation["bbox"] = [side / 400 for side in annotation["bbox"]]
    (tmp_path / "halved.json").write_text(json.dumps(document), encoding="utf-8")
    command = ["prepare", "coco", "--annotations", str(tmp_path / "halved.json")]
    command += ["--images", str(examples / "images" / "train"), "--output", str(tmp_path / "out")]
    command += ["--max-bad-fraction", "1"]
    for _ in range(2):
        assert main(command) == 0
        warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
        assert len([line for line in warnings if "[0, 1]" in line]) == 1


def test_the_next_command_loads(coco):
    assert main(arguments(coco)) == 0
    config = Data(
        format="coco", train_annotations=coco.root / "out" / "samples.jsonl", train_images=coco.images,
        val_annotations=coco.annotations, val_images=coco.images,
    )  # fmt: skip
    train = load_split(config, "train", data_dir=coco.root)
    val = load_split(config, "val", data_dir=coco.root)
    assert [sample.image_id for sample in train.samples] == [sample.image_id for sample in val.samples] == [7, 3]


def test_bad_records_are_one_sentence_and_rejected_ones_are_listed(coco, capsys):
    coco.document["annotations"][0]["bbox"] = [200, 0, 9, 9]
    coco.save()
    assert main(arguments(coco)) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {coco.annotations}: 1 of 2 annotations")
    assert error.count("\n") == 1
    assert main(arguments(coco, "--max-bad-fraction", "0.5")) == 0
    out = capsys.readouterr().out
    assert "annotations[0] (id 1): bbox [200.0, 0.0, 9.0, 9.0]" in out


def test_shapes_come_as_jsonl_too(tmp_path, capsys):
    output = tmp_path / "shapes"
    argv = ["prepare", "shapes", "--output", str(output), "--num-train", "3", "--num-val", "2"]
    assert main(argv) == 0
    for split, number in (("train", 3), ("val", 2)):
        made = output / "jsonl" / split
        samples = read_jsonl(made / "samples.jsonl", output / split).samples
        assert len(samples) == number
        manifest = json.loads((made / "manifest.json").read_text())
        assert manifest["counts"]["boxes"] == sum(len(sample.objects) for sample in samples)
    assert main(argv) == 0
    capsys.readouterr()
