"""Untouched checkpoints: one that writes JSON, from its prompt to its metrics, and the embedded base in its digits."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from coordexp.cli.main import main
from coordexp.coord_tokens.vocab import END_TOKEN
from coordexp.data.batch import EncodedSample, collate
from coordexp.data.images.patches import ImageSpec, to_patches
from coordexp.data.prompt import Prompt
from coordexp.data.shapes import CATEGORIES, draw_scene
from coordexp.evaluate.generate.qwen_json import JSON_FAILURE_KINDS, detection_prompt
from coordexp.model.loading import load
from coordexp.model.tiny.parts import save_base
from coordexp.model.tiny.pretrain import supervised_logits
from coordexp.statistics import paired_bootstrap
from tests.support.evaluate_command import NUM_IMAGES
from tests.support.metrics import unregistered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # a model is taught to answer in JSON
BORDER = {"bbox_2d": [600, 500, 1000, 1000], "label": CATEGORIES[0]}
OTHER = {"bbox_2d": [1, 2, 3, 4], "label": "cat"}
FIVE = {"bbox_2d": [1, 2, 3, 4, 5], "label": CATEGORIES[0]}
ANSWER = json.dumps([BORDER, FIVE, OTHER])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """The embedded base, taught for some seconds to answer the vendor's prompt with one text, whatever it sees."""
    loaded = load("embedded", dtype="float32")
    model, tokenizer = loaded.model.train(), loaded.processor.tokenizer
    spec = ImageSpec.from_processor(loaded.processor.image_processor)
    prompt = Prompt.build(tokenizer, detection_prompt(CATEGORIES))
    target = tokenizer.encode(ANSWER + END_TOKEN, add_special_tokens=False)
    samples: list[EncodedSample] = []
    for number in range(16):
        patches, grid = to_patches(draw_scene(np.random.default_rng(number))[0], spec)
        prompt_ids = prompt.ids(grid[0] * grid[1] // spec.merge_size**2)
        nothing = {"boxes_norm_xyxy": np.zeros((0, 4), np.float32), "coord_index": np.zeros((0, 4), np.int64)}
        samples.append(EncodedSample(prompt_ids, target, patches, grid, image_id=number, **nothing))
    ids = {"pad_id": tokenizer.pad_token_id, "image_token_id": model.config.image_token_id}
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(150):
        batch = collate([samples[(2 * step + n) % 16] for n in range(2)], **ids)
        loss = F.cross_entropy(*supervised_logits(model, batch, spec))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if loss < 0.01:
            break
    assert loss < 0.01
    path = tmp_path_factory.mktemp("taught") / "checkpoint"
    save_base(path, model.eval(), tokenizer)
    return path


def arguments(model: Path | str, shapes: Path, *, answer: str = "qwen-json") -> list[str]:
    files = ["--model", model, "--annotations", shapes / "instances_val.json", "--images", shapes / "val"]
    return ["evaluate", *map(str, files), "--answer", answer, "--threads", "1"]


def test_an_untouched_checkpoint_is_asked_in_its_own_words(checkpoint, shapes, capsys):
    capsys.readouterr()
    assert main(arguments(checkpoint, shapes)) == 0
    text = capsys.readouterr().out
    output = checkpoint.parent / "eval" / "checkpoint-instances_val-qwen-json"
    assert str(output) in text
    assert f"malformed, free: {NUM_IMAGES} malformed box" in text
    assert {path.name for path in output.iterdir()} == {"free", "metrics.json", "hardware.json"}
    free = output / "free"
    names = {"detections.argmax.json", "detections.expected.json", "objects.jsonl", "answers.jsonl", "unknown.json"}
    assert {path.name for path in free.iterdir()} == names | {"analysis.json", "distributions.json"}
    assert (free / "detections.argmax.json").read_bytes() == (free / "detections.expected.json").read_bytes()
    assert json.loads((free / "unknown.json").read_text()) == {"cat": NUM_IMAGES}
    truth = json.loads((shapes / "instances_val.json").read_text())
    sizes = {image["id"]: (image["width"], image["height"]) for image in truth["images"]}
    detections = json.loads((free / "detections.argmax.json").read_text())
    assert len(detections) == NUM_IMAGES
    for item in detections:
        width, height = sizes[item["image_id"]]
        assert item["bbox"] == pytest.approx([0.6 * width, 0.5 * height, 0.4 * width, 0.5 * height])
        assert 0.9 < item["score"] <= 1, "it is sure of what it was taught"
    for line in map(json.loads, (free / "objects.jsonl").read_text().splitlines()):
        assert [item["bins"] for item in line["objects"]] == [BORDER["bbox_2d"], OTHER["bbox_2d"]]
        assert [item["expected"] for item in line["objects"]] == [[0.6, 0.5, 1.0, 1.0], [0.001, 0.002, 0.003, 0.004]]
        assert (line["failures"], line["truncated"]) == (["malformed_box"], False)
    metrics = json.loads((output / "metrics.json").read_text())
    assert unregistered(metrics) == []
    kinds = {name.removeprefix("free/malformed/"): value for name, value in metrics.items() if "malformed/" in name}
    assert kinds == dict.fromkeys(JSON_FAILURE_KINDS, 0.0) | {"malformed_box": NUM_IMAGES}
    assert metrics["free/num_objects"] == 2 * NUM_IMAGES
    assert "free/coord_mass" not in metrics
    argmax, expected = (
        {name.replace(kind, ""): value for name, value in metrics.items() if kind in name}
        for kind in ("argmax", "expected")
    )
    assert argmax == expected
    assert len(argmax) > 5
    assert "pixels" not in text


def test_an_answer_that_is_cut_off_keeps_what_is_whole(checkpoint, shapes, tmp_path, capsys):
    command = [*arguments(checkpoint, shapes), "--num-images", "2", "--output", str(tmp_path)]
    assert main([*command, "--max-new-tokens", "60"]) == 0
    assert "2 cut off" in capsys.readouterr().out
    for line in map(json.loads, (tmp_path / "free" / "objects.jsonl").read_text().splitlines()):
        assert [item["bins"] for item in line["objects"]] == [BORDER["bbox_2d"]]
        assert (line["failures"], line["truncated"]) == (["cut_off"], True)


def test_the_embedded_base_answers_in_digits_and_stands_beside_others(checkpoint, shapes, tmp_path):
    command = [*arguments("embedded", shapes, answer="text"), "--max-new-tokens", "100"]
    assert main([*command, "--output", str(tmp_path / "text")]) == 0
    metrics = json.loads((tmp_path / "text" / "metrics.json").read_text())
    for name in ("constrained/argmax/AP", "constrained/expected/AP", "free/argmax/AP"):
        assert metrics[name] == metrics["constrained/argmax/AP"] > 0.5, "it was pre-trained on such boxes"
    assert main([*arguments(checkpoint, shapes), "--output", str(tmp_path / "json")]) == 0
    files = {
        "digits": tmp_path / "text" / "constrained" / "detections.argmax.json",
        "json": tmp_path / "json" / "free" / "detections.argmax.json",
    }
    report = paired_bootstrap(shapes / "instances_val.json", files, resamples=200)
    assert report.ap["digits"] == pytest.approx(metrics["constrained/argmax/AP"])
    difference = report.difference["digits", "json"]
    assert 0 < difference.low <= difference.value <= difference.high
