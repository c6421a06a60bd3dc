"""The campaign itself, on a CPU: its numbers mean nothing here, its files do."""

import json
import os
import re
import signal
import time
import warnings

import pytest
import torch

from coordexp.model.tiny.parts import SPECIAL_TOKENS
from tests.gpu import campaign
from tests.gpu.measuring.record import Cell, PartRecord, machine, write_summary
from tests.gpu.measuring.shapes import Setting, published_tokenizer, random_model, write_scenes
from tests.gpu.measuring.training import train_cells
from tests.gpu.measuring.watching import Waits
from tests.unit.model.real_vocabulary import NUM_ENTRIES


@pytest.fixture(autouse=True)
def _torch_as_before():
    before = torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Run one part in this process and return its cells."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(part: str, cells: str) -> list[dict]:
        # A process of a test session is older than any part.
        monkeypatch.setattr("psutil.Process.create_time", lambda self: time.time())
        given = ["--here", "--part", part, "--cells", cells, "--size", "tiny", "--device", "cpu"]
        assert campaign.main([*given, "--out", str(tmp_path)]) == 0
        content = json.loads((tmp_path / f"{part}-tiny.json").read_text())
        assert content["finished"]
        assert content["machine"]["versions"]["torch"] == torch.__version__
        return content["cells"]

    return run


def test_training_steps_are_timed_counted_and_watched(measured, tmp_path):
    plain, watched, flash = measured("train", "^C sdpa coco batch 2$|^watched|^C flash")
    for cell in (plain, watched):
        assert cell["images_s"] * cell["step_ms"] == pytest.approx(2 * 1000)  # two images a step
        assert 0 < cell["mfu"] < cell["mfu_as_if_full"]
        assert cell["hardware_use"] == cell["mfu"]  # nothing is computed twice
        assert cell["tokens_an_image"] > cell["answer_tokens_an_image"] > 10
        assert 0 < cell["vision_share"] < 0.5
        assert cell["doctor_gib"] > 0.5
        assert 0 < cell["loss"] < 20
    assert watched["host_waits_per_step"] is None  # cannot be seen here
    stages = {row["stage"]: row["share"] for row in watched["stages"]}
    assert sum(stages.values()) == pytest.approx(1)
    assert {"language model", "language model, backward", "vision tower, backward", "optimizer"} <= stages.keys()
    head = stages["head, losses and diagnostics"] + stages["head, losses and diagnostics, backward"]
    assert watched["head_and_losses_share"] == pytest.approx(head)
    assert watched["kernels"][0]["ms"] >= watched["kernels"][1]["ms"] > 0
    assert "flash_attention_2" in flash["error"]
    text = write_summary(tmp_path).read_text()
    assert "| C sdpa coco batch 2 |" in text
    assert "watched: C sdpa coco batch 2, stages:" in text


def test_checkpointing_and_packing_are_cells_too(measured):
    (both,) = measured("train", "^C sdpa coco batch 2 checkpointing packing$")
    assert both["hardware_use"] > both["mfu"]


def test_answers_are_the_annotated_ones(measured):
    cells = measured("generate", "constrained batch 2|scoring free")
    constrained, plain = (cell for cell in cells if "batch 2" in cell["cell"])
    assert constrained["objects"] == plain["objects"] > 0  # the grammar allows an annotated answer
    assert "transformers' generate" in plain["cell"]
    for cell in (constrained, plain):
        assert cell["longest_answer"] > cell["mean_answer"] > 5
        assert cell["boxes_s"] == pytest.approx(cell["images_s"] * cell["objects"] / 8)
    (scored,) = (cell for cell in cells if cell["cell"].startswith("scoring"))
    assert 0 < scored["AP"] < 1


def test_memory_is_compared_with_the_estimate(measured):
    (cell,) = measured("memory", "640x480 batch 1$")
    assert cell["peak_to_doctor"] == pytest.approx(cell["peak_gib"] / cell["doctor_gib"])


def _record(tmp_path, seconds: float = 1e9) -> PartRecord:
    return PartRecord(tmp_path / "train-tiny.json", {"machine": machine()}, seconds, re.compile(""))


def _rows(tmp_path) -> list[dict]:
    return json.loads((tmp_path / "train-tiny.json").read_text())["cells"]


def test_a_cell_that_fails_is_a_row_and_the_next_one_runs(tmp_path):
    def fails(left: float):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB.\nmore lines")

    _record(tmp_path).run([Cell("first", 1, fails), Cell("second", 1, lambda left: {"images_s": 2.0})])
    first, second = _rows(tmp_path)
    assert first["error"] == "OutOfMemoryError: CUDA out of memory. Tried to allocate 3 GiB."
    assert second["images_s"] == 2.0


def test_what_no_time_is_left_for_says_so(tmp_path):
    _record(tmp_path, seconds=0).run([Cell("first", 30, lambda left: {"images_s": 2.0})])
    assert _rows(tmp_path) == [{"cell": "first", "skipped": "0 s were left, and it takes about 30"}]


def test_a_signal_leaves_what_was_measured(tmp_path):
    def is_stopped(left: float):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    cells = [Cell("first", 1, lambda left: {"images_s": 2.0}), Cell("second", 1, is_stopped), Cell("third", 1, dict)]
    _record(tmp_path).run(cells)
    first, second = _rows(tmp_path)
    assert first["images_s"] == 2.0
    assert second == {"cell": "second", "skipped": "stopped by a signal before it ended"}
    assert not json.loads((tmp_path / "train-tiny.json").read_text())["finished"]
    assert "(not finished)" in write_summary(tmp_path).read_text()


def test_waits_are_counted_by_the_line_that_asks():
    def read() -> None:
        warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)

    waits = Waits()
    with waits.watching():
        for _ in range(4):
            read()
        warnings.warn("something else", stacklevel=1)
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
    rows = waits.rows(num_steps=2)
    assert [row["per_step"] for row in rows] == [2.0, 0.5]
    assert "test_campaign.py" in rows[0]["line"]
    assert " read: " in rows[0]["line"]


def test_models_are_of_the_published_sizes_and_ids():
    tokenizer = published_tokenizer()
    assert len(tokenizer) == NUM_ENTRIES
    assert tokenizer.convert_tokens_to_ids(SPECIAL_TOKENS[0]) == 151_643
    assert tokenizer("person cup")["input_ids"][0] < 1000
    with torch.device("meta"):
        numbers = {size: random_model(size, dtype=torch.bfloat16, attention="sdpa") for size in ("2b", "4b", "8b")}
    billions = [sum(p.numel() for p in model.parameters()) / 1e9 for model in numbers.values()]
    assert billions == pytest.approx([2.13, 4.44, 8.77], abs=0.01)


@pytest.mark.parametrize("scenes", ["coco", "640x480", "640x640 crowded"])
def test_scenes_are_what_they_are_called(scenes, tmp_path):
    folder = write_scenes(tmp_path, scenes, 40)
    document = json.loads((folder / "instances.json").read_text())
    sizes = {(image["width"], image["height"]) for image in document["images"]}
    mean = len(document["annotations"]) / 40
    assert len(sizes) > 5 if scenes == "coco" else sizes == {tuple(map(int, re.findall(r"\d+", scenes)))}
    assert mean == 93 if "crowded" in scenes else 4 < mean < 12
    assert write_scenes(tmp_path, scenes, 40) == folder


def test_no_cell_is_there_twice():
    names = [cell.name for cell in train_cells(Setting("4b"))]
    assert len(names) == len(set(names)) > 12
    for word in (
        "C ",
        "A ",
        "D ",
        "flash_attention_2",
        "checkpointing",
        "packing",
        "640x480",
        "deterministic",
        "stock images",
    ):
        assert any(word in name for name in names), word
