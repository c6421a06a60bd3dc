"""The campaign itself, on a CPU: its numbers mean nothing here, its files do."""

import json

import pytest
import torch

from coordexp.model.tiny.parts import SPECIAL_TOKENS
from tests.gpu import campaign
from tests.gpu.setting import published_tokenizer, random_model
from tests.support.real_vocabulary import NUM_ENTRIES


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Run one part in this process and return its cells."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for module in ("setting", "training"):
        monkeypatch.setattr(f"tests.gpu.{module}.FOLDER", tmp_path / "made")
    before = torch.are_deterministic_algorithms_enabled()

    def run(part: str, cells: str) -> list[dict]:
        given = ["--here", "--part", part, "--cells", cells, "--size", "tiny", "--device", "cpu"]
        assert campaign.main([*given, "--out", str(tmp_path)]) == 0
        content = json.loads((tmp_path / f"{part}-tiny.json").read_text())
        assert content["finished"]
        assert content["machine"]["versions"]["torch"] == torch.__version__
        return content["cells"]

    yield run
    torch.use_deterministic_algorithms(before)


def test_training_steps_are_timed_and_profiled(measured):
    plain, kernels, flash = measured("train", "^C batch 2$|^kernels|^flash")
    assert plain["images_s"] * plain["step_ms"] == pytest.approx(2 * 1000)
    assert plain["mfu"] > 0
    assert 0 < plain["loss"] < 30
    assert kernels["kernels"][0]["ms"] >= kernels["kernels"][1]["ms"] > 0
    assert "flash" in flash["error"]


@pytest.mark.slow
def test_answers_are_the_annotated_ones(measured):
    rows, plain = measured("generate", "constrained batch 2")
    assert "transformers' generate" in plain["cell"]
    assert rows["objects"] == plain["objects"] > 0  # the grammar allows an annotated answer
    for cell in (rows, plain):
        assert cell["longest_answer"] > cell["mean_answer"] > 5
        assert cell["boxes_s"] == pytest.approx(cell["images_s"] * cell["objects"] / 8)


def test_answers_do_not_depend_on_the_batch_in_full_precision(measured):
    (cell,) = measured("generate", "batch 1 and 16")
    assert cell["images"] == 4
    assert cell["identical_fraction"] == 1
    assert cell["largest_argmax_difference_bins"] == 0
    assert cell["largest_expected_difference_bins"] < 0.01


@pytest.mark.slow
def test_one_command_runs_the_parts_within_its_time(tmp_path, capsys):
    """Without a GPU its tests skip; a part for which no time is left is named."""
    given = ["--part", "tests", "--part", "head", "--size", "tiny", "--device", "cpu", "--out", str(tmp_path)]
    assert campaign.main([*given, "--minutes", "0.4"]) == 1
    printed = capsys.readouterr().out
    assert "tests: exit code 0" in printed
    assert "head: not begun" in printed
    assert "skipped" in (tmp_path / "tests-tiny.log").read_text()


@pytest.mark.slow
def test_the_head_is_a_part(measured):
    (cell,) = measured("head", "")
    assert len(cell["variants"]) == 8
    assert all(row["seconds"] > 0 for row in cell["variants"])


def test_models_are_of_the_published_sizes_and_ids():
    tokenizer = published_tokenizer()
    assert len(tokenizer) == NUM_ENTRIES
    assert tokenizer.convert_tokens_to_ids(SPECIAL_TOKENS[0]) == 151_643
    with torch.device("meta"):
        numbers = {size: random_model(size) for size in ("2b", "4b", "8b")}
    billions = [sum(p.numel() for p in model.parameters()) / 1e9 for model in numbers.values()]
    assert billions == pytest.approx([2.13, 4.44, 8.77], abs=0.01)
