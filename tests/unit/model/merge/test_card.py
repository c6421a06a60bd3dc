"""The card of a merge by hand: true, and nothing in it that nobody knows."""

import json
from pathlib import Path

import yaml

from coordexp.cli.main import main
from coordexp.model.checkpoint.adapter import TrainedBase, name_base, save_adapter
from coordexp.model.checkpoint.trained_with import TrainedWith
from coordexp.model.merging.card import TrainingFacts, card_text
from coordexp.model.merging.merge import merge
from coordexp.model.merging.proof import MergeReport

REPORT = MergeReport(dtype="bfloat16", tie_word_embeddings=True)


def test_a_merge_by_hand_says_what_the_adapter_says(make_base, make_adapted, tmp_path):
    trained = make_adapted(make_base())
    told = TrainedBase("Qwen/Qwen3-VL-4B-Instruct", "abc123", structure="native")
    name_base(trained, told, TrainedWith("Find | all.", 1024, 9216))
    save_adapter(trained, tmp_path / "adapter")
    base = str(make_base())
    assert main(["merge", "--adapter", f"{tmp_path}/adapter", "--output", f"{tmp_path}/merged", "--base", base]) == 0
    card = (tmp_path / "merged" / "README.md").read_text()
    assert f"| base | `{base}` (the adapter names `Qwen/Qwen3-VL-4B-Instruct`) |" in card
    assert r"| prompt | `Find \| all.` |" in card
    assert "9,216 pixels" in card
    assert "<|box_start|><|coord_x1|>" in card
    for unknown in ("group", "data |", "COCO AP", "read |", "seed"):
        assert unknown not in card
    assert "base_model" not in yaml.safe_load(card.split("---")[1])  # a path is none on the hub


def test_an_adapter_of_another_trainer_is_not_called_ours(make_base, make_adapter, tmp_path):
    merge(make_adapter(make_base(), tuning="lora", tie_head=None), tmp_path / "merged")
    card = (tmp_path / "merged" / "README.md").read_text()
    assert "fine-tuned" not in card
    assert "predict" not in card
    assert "coord_x1" not in card
    assert "vllm serve ." in card


def test_a_hub_id_is_the_base_model_and_template_arguments_are_served(tmp_path: Path):
    thinking = MergeReport(dtype="bfloat16", tie_word_embeddings=True, template={"enable_thinking": False})
    card = card_text(TrainingFacts(base="Qwen/Qwen3.5-4B", revision="main"), thinking)
    assert yaml.safe_load(card.split("---")[1])["base_model"] == "Qwen/Qwen3.5-4B"
    assert f"vllm serve . --default-chat-template-kwargs '{json.dumps({'enable_thinking': False})}'" in card
    assert "| left behind |" not in card


def test_boxes_in_digits_have_no_coord_tokens():
    facts = TrainingFacts(reading="argmax", structure=None, trained_with=TrainedWith("Find all.", 1, 2))
    assert "coord_" not in card_text(facts, REPORT)
