"""``coordexp predict``: the same answers as an evaluation, in pixels, with their distributions, printed and drawn."""

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

import coordexp
from coordexp.cli.main import main
from coordexp.evaluate.distributions import NUM_OBJECTS, Distributions
from coordexp.evaluate.predict import predict
from tests.support.evaluate_command import arguments

pytestmark = pytest.mark.timeout(240)
LIMITS = ["--max-new-tokens", "40", "--threads", "1"]


@pytest.fixture(scope="module")
def predicted(checkpoint, shapes):
    return coordexp.predict(checkpoint, sorted((shapes / "val").iterdir()), max_new_tokens=40)


@pytest.mark.ci
def test_objects_are_those_of_an_evaluation(checkpoint, shapes, tmp_path):
    command = ["evaluate", *arguments(checkpoint, shapes), "--output", str(tmp_path), "--decoding", "constrained"]
    assert main([*command, "--max-new-tokens", "150", "--num-images", "5"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "constrained" / "objects.jsonl").read_text().splitlines()]
    kept = Distributions.read(tmp_path / "constrained" / "distributions.json").images
    assert max(len(image.objects) for image in kept) == NUM_OBJECTS < max(len(row["objects"]) for row in rows)
    images = {image["id"]: image for image in json.loads((shapes / "instances_val.json").read_text())["images"]}
    pictures = [shapes / "val" / images[row["image_id"]]["file_name"] for row in rows]
    found = predict(checkpoint, pictures, max_new_tokens=150, batch_size=2, num_threads=1)
    assert [item.picture for item in found] == pictures
    assert any(item.objects for item in found)
    for row, item in zip(rows, found, strict=True):
        sides = np.array([item.width, item.height] * 2)
        assert (item.width, item.height) == (images[row["image_id"]]["width"], images[row["image_id"]]["height"])
        assert item.truncated == row["truncated"]
        assert list(item.malformed) == row["failures"]
        for told, thing in zip(row["objects"], item.objects, strict=True):
            assert (thing.desc, list(thing.bins)) == (told["desc"], told["bins"])
            assert thing.score == pytest.approx(told["score"], rel=1e-5)  # beside other images, which round otherwise
            assert thing.std_px == pytest.approx(np.array(told["width"]) / 1000 * sides, rel=1e-5)
            corners = np.array(told["expected"]).reshape(2, 2)
            ordered = np.concatenate([corners.min(0), corners.max(0)]) * sides
            assert thing.expected_px == pytest.approx(ordered, rel=1e-5)


def test_a_checkpoint_that_is_asked_unlike_its_training_says_so(checkpoint, shapes, tmp_path, capsys):
    trained = shutil.copytree(checkpoint, tmp_path / "merged")
    (trained / "trained_with.json").write_text('{"prompt": "Name all.", "min_pixels": 1024, "max_pixels": 9216}')
    said = f"warning: {trained} was trained on images of at most 9,216 pixels and is asked with 4,096; "
    picture = str(next((shapes / "val").iterdir()))
    ask = ["predict", "--model", str(trained), picture, "--output", str(tmp_path / "p"), "--max-new-tokens", "4"]
    assert main([*ask, "--max-pixels", "4096"]) == 0
    assert said in capsys.readouterr().err
    assert main(ask) == 0
    assert "warning" not in capsys.readouterr().err


def test_distributions_have_the_mean_that_is_the_box(predicted):
    assert sum(len(item.objects) for item in predicted) > 4  # more than an evaluation keeps of one image
    item = predicted[0]
    assert item.objects
    for thing in item.objects:
        assert len(thing.distributions) == 4
        means = []
        for curve, side in zip(thing.distributions, [item.width, item.height] * 2, strict=True):
            probs = np.array(curve.units) / 100_000
            assert probs.sum() == pytest.approx(1, abs=0.02)
            means.append(float(np.arange(curve.start, curve.start + len(probs)) @ probs / 1000 * side))
        x1, y1, x2, y2 = means
        ordered = [min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)]
        assert thing.expected_px == pytest.approx(ordered, abs=0.02 * max(item.width, item.height))


def test_the_command_prints_writes_and_draws(checkpoint, shapes, tmp_path, capsys):
    first, second = sorted((shapes / "val").iterdir())[:2]
    other = tmp_path / "elsewhere" / first.name
    other.parent.mkdir()
    shutil.copy(second, other)
    output = tmp_path / "out"
    capsys.readouterr()
    assert main(["predict", "--model", str(checkpoint), str(first), str(other), "--output", str(output), *LIMITS]) == 0
    text = capsys.readouterr().out
    stem = first.stem
    assert {path.name for path in output.iterdir()} == {
        "predictions.json", f"0-{stem}.png", f"1-{stem}.png",
    }  # fmt: skip
    told = json.loads((output / "predictions.json").read_text())
    assert [item["picture"] for item in told] == [str(first), str(other)]
    for item in told:
        for thing in item["objects"]:
            assert f"{thing['score']:.3f}" in text
    with Image.open(output / f"0-{stem}.png") as drawn:
        assert min(drawn.size) >= 480  # large enough for words
        assert len(drawn.convert("RGB").getcolors(2**24)) > 10
    assert (
        main(["predict", "--model", str(checkpoint), str(first), "--output", str(output), "--format", "json", *LIMITS])
        == 0
    )
    (alone,) = json.loads(capsys.readouterr().out)
    assert [thing["bins"] for thing in alone["objects"]] == [thing["bins"] for thing in told[0]["objects"]]


def test_a_turned_picture_is_said_and_read_as_a_viewer_shows_it(checkpoint, shapes, tmp_path, capsys):
    upright = sorted((shapes / "val").iterdir())[0]
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(upright) as picture:
        turned = picture.convert("RGB").transpose(Image.Transpose.ROTATE_90)
        turned.save(tmp_path / "photo.png", exif=exif)
    ask = ["predict", "--model", str(checkpoint), "--output", str(tmp_path / "out"), *LIMITS, "--format", "json"]
    assert main([*ask, str(upright), str(tmp_path / "photo.png")]) == 0
    told = capsys.readouterr()
    warnings = [line for line in told.err.splitlines() if line.startswith("warning: ")]
    said = "stored turned or mirrored (EXIF orientation 6); boxes are of the picture as a viewer shows it"
    assert warnings == [f"warning: {tmp_path / 'photo.png'}: {said}"]
    plain, photo = json.loads(told.out)
    assert plain["objects"]
    assert photo == plain | {"picture": str(tmp_path / "photo.png")}


def test_free_decoding_says_how_many_pieces_are_malformed(checkpoint, shapes, tmp_path, capsys):
    picture = sorted((shapes / "val").iterdir())[0]
    ask = ["predict", "--model", str(checkpoint), str(picture), "--output", str(tmp_path / "out"), *LIMITS]
    assert main([*ask, "--decoding", "free"]) == 0
    (kept,) = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert kept["malformed"], "a checkpoint without training writes pieces that are no object"
    assert re.search(rf"malformed.*\b{len(kept['malformed'])} \(", capsys.readouterr().out)
    assert main(ask) == 0
    assert "malformed" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("picture", "sentence"),
    [
        ("none.jpg", "none.jpg: image not found"),
        ("text.jpg", "text.jpg: image does not decode"),
        ("folder", "folder: that is a folder; expected image files, such as "),
        ("folder", "folder/*.jpg"),
    ],
)
def test_a_picture_that_is_none_is_said(checkpoint, tmp_path, capsys, picture, sentence):
    (tmp_path / "text.jpg").write_text("no picture")
    (tmp_path / "folder").mkdir()
    command = ["predict", "--model", str(checkpoint), str(tmp_path / picture), "--output", str(tmp_path / "out")]
    assert main(command) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_folders_that_lead_to_a_checkpoint_say_to_which(checkpoint, shapes, tmp_path, capsys):
    picture = str(next((shapes / "val").iterdir()))
    assert main(["predict", "--model", str(checkpoint.parent), picture, "--output", str(tmp_path)]) == 2
    assert str(checkpoint) in capsys.readouterr().err
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    assert main(["evaluate", *arguments(checkpoint, shapes), "--model", str(adapter)]) == 2
    assert f"--adapter {adapter}" in capsys.readouterr().err
