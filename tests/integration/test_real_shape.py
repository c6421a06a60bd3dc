"""A checkpoint of the published form with the true vocabulary, from preparation to a merged and evaluated model.

Its layers are narrow; everything else is what Qwen/Qwen3-VL-4B-Instruct has.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen3VLForConditionalGeneration

from coordexp.cli.main import main
from coordexp.config import load_config
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ResourceError, TokenizerError
from coordexp.model.checkpoint.stored_model import EMBEDDING
from coordexp.model.checkpoint.trained_with import read_trained_with
from coordexp.model.expand import expand_to
from coordexp.model.loading import load
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.train.setup.base import prepare_base
from coordexp.train.setup.prepare import prepare_experiment
from tests.support.real_vocabulary import COORD_IDS, all_weights, write_narrow
from tests.support.tiny_model import weights_hash

EXPERIMENT = "experiments/coco_qwen3vl_4b.yaml"
TRUE_IDS = "custom.coord_offset.ids={start: 151670, end: 152669}"


@pytest.fixture(scope="module")
def narrow(qwen_tokenizer, tmp_path_factory) -> Path:
    return write_narrow(tmp_path_factory.mktemp("narrow") / "checkpoint", qwen_tokenizer, tied=True)


def _config(model: Path, runs_dir: Path, *changes: str) -> ExperimentConfig:
    return load_config(EXPERIMENT, [f"model.path={model}", f"experiment.runs_dir={runs_dir}", *changes])


@pytest.mark.ci
def test_the_ids_of_the_specification_are_the_true_ones(narrow, tmp_path):
    config = _config(narrow, tmp_path, TRUE_IDS)
    base = prepare_base(config)
    assert {tensor.dtype for tensor in all_weights(base).values()} == {torch.bfloat16}
    made = (base / "base.json").stat().st_mtime_ns
    assert prepare_base(config) == base
    wrong = _config(narrow, tmp_path, "custom.coord_offset.ids={start: 151669, end: 152668}")
    with pytest.raises(TokenizerError, match=r"151669\.\.152668.*151670\.\.152669"):
        prepare_base(wrong)  # also where the base is there already
    assert (base / "base.json").stat().st_mtime_ns == made


def test_other_ids_are_refused_before_anything_is_written(narrow, tmp_path):
    config = _config(narrow, tmp_path, "custom.coord_offset.ids={start: 151936, end: 152935}")
    with pytest.raises(TokenizerError, match=r"custom\.coord_offset\.ids.*151936\.\.152935") as caught:
        prepare_base(config)
    assert "\n" not in str(caught.value)
    assert not ExperimentFolder.of(config).base(config).exists()


def test_flash_attention_is_refused_before_the_data_is_prepared(narrow, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    changes = ("data.format=shapes", "model.attn_implementation=flash_attention_2")
    config = _config(narrow, tmp_path, *changes)
    with pytest.raises(ResourceError, match="flash-attn"):
        prepare_experiment(config)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ResourceError, match="CUDA"):
        prepare_experiment(_config(narrow, tmp_path, *changes, "cluster.executor=inline"))
    assert not ExperimentFolder.of(config).data.exists()


def _small(runs_dir: Path, model: Path) -> list[str]:
    """The shipped experiment, smaller: two steps of two images on a CPU."""
    return [
        f"experiment.runs_dir={runs_dir}",
        "experiment.name=narrow",
        f"model.path={model}",
        TRUE_IDS,
        "data.min_pixels=16384",
        "data.max_pixels=65536",
        "data.num_workers=0",
        "training.max_steps=2",
        "training.checkpoint_steps=1",
        "training.logging_steps=1",
        "training.per_device_batch_size=2",
        "evaluation.every_steps=null",
        "evaluation.batch_size=8",
        "evaluation.max_new_tokens=16",
        "evaluation.loss_images=4",
        "cluster.num_workers=1",
        "cluster.cpus_per_worker=1",
        "cluster.gpus_per_worker=0.0",
    ]


def _data(coco_tiny: Path) -> list[str]:
    return [
        *(f"data.{split}_annotations={coco_tiny}/annotations/instances_{split}2017.json" for split in ("train", "val")),
        *(f"data.{split}_images={coco_tiny}/images/{split}2017" for split in ("train", "val")),
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_chain(narrow, coco_tiny, tmp_path, capsys):
    overrides = [*_small(tmp_path / "runs", narrow), *_data(coco_tiny)]
    assert main(["train", "--config", EXPERIMENT, "--group", "C", *overrides]) == 0
    run = RunFolder.of(load_config(EXPERIMENT, [*overrides, "experiment.group=C"])).path
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["metrics"]["train_total_loss"] for row in rows if "train_total_loss" in row["metrics"]]
    assert len(losses) == 2
    assert all(10 < loss < 20 for loss in losses)  # ln 152,670 = 11.9 of a model that knows nothing, and the boxes
    for decoding in ("constrained", "free"):
        assert (run / "eval" / "final" / decoding / "detections.expected.json").is_file()

    adapter = load_file(run / "checkpoints" / "step_000002" / "adapter_model.safetensors")
    table = next(tensor for name, tensor in adapter.items() if name.endswith("embed_offset"))
    assert table.shape == (1000, 64)
    assert bool(table.any())
    ids = next(tensor for name, tensor in adapter.items() if name.endswith("coord_ids"))
    assert ids.tolist() == list(COORD_IDS)

    _check_merged(run / "merged", narrow)
    again = tmp_path / "again"
    command = ["merge", "--adapter", str(run / "checkpoints" / "step_000002"), "--output", str(again)]
    assert main(command) == 0
    assert weights_hash(again) == weights_hash(run / "merged")
    capsys.readouterr()
    places = [
        *("--annotations", f"{coco_tiny}/annotations/instances_val2017.json"),
        *("--images", f"{coco_tiny}/images/val2017"),
    ]
    limits = ["--max-new-tokens", "16", "--max-pixels", "65536", "--decoding", "constrained"]
    assert main(["evaluate", "--model", str(again), *places, "--output", str(tmp_path / "eval"), *limits]) == 0
    assert "AP" in capsys.readouterr().out


def _check_merged(merged: Path, original: Path) -> None:
    model, report = Qwen3VLForConditionalGeneration.from_pretrained(merged, dtype="auto", output_loading_info=True)
    assert not any(report.values())
    assert model.dtype == torch.bfloat16
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert len(model.get_input_embeddings().weight) == COORD_IDS.stop
    tokenizer = AutoTokenizer.from_pretrained(merged)
    assert tokenizer.convert_tokens_to_ids(["<|coord_0|>", "<|coord_999|>"]) == [COORD_IDS[0], COORD_IDS[-1]]
    before, after = all_weights(original), all_weights(merged)
    assert torch.equal(before[EMBEDDING][: COORD_IDS.start - 1], after[EMBEDDING][: COORD_IDS.start - 1])
    layer = "model.language_model.layers.1.mlp.up_proj.weight"
    assert not torch.equal(before[layer], after[layer])  # two steps of LoRA
    stated, before = (json.loads((place / "preprocessor_config.json").read_text()) for place in (merged, original))
    assert stated | {"size": before["size"]} == before
    trained_with = read_trained_with(merged)
    assert trained_with is not None
    assert stated["size"] == {
        "shortest_edge": trained_with.min_pixels, "longest_edge": trained_with.max_pixels,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_expanded_checkpoint_trains_as_the_one_it_came_from(narrow, coco_tiny, tmp_path):
    """``expand-vocab`` by hand before training, or by training itself: the same losses."""
    expand_to(narrow, tmp_path / "expanded")
    losses = []
    for number, model in enumerate((narrow, tmp_path / "expanded")):
        overrides = [*_small(tmp_path / str(number), model), *_data(coco_tiny), "evaluation.decoding=[constrained]"]
        assert main(["train", "--config", EXPERIMENT, "--group", "A", *overrides]) == 0
        run = RunFolder.of(load_config(EXPERIMENT, [*overrides, "experiment.group=A"])).path
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        base = ExperimentFolder.of(load_config(EXPERIMENT, overrides)).base(load_config(EXPERIMENT, overrides))
        assert load(base).vocab.coord_ids == COORD_IDS
        assert weights_hash(base) == weights_hash(tmp_path / "expanded")
        losses.append([row["metrics"].get("train_total_loss") for row in rows])
    assert losses[0] == losses[1]
    assert any(losses[0])
