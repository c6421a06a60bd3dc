"""The text arm from the checkpoint to its files: nothing is added to the model, and every command takes it."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from coordexp.campaign.preparation import fingerprint_runs, prepare_all
from coordexp.cli.main import main
from coordexp.config import diff
from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.bins import decode_array
from coordexp.data.sources.source import source_of
from coordexp.errors import ConfigError
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.runs.plan import plan_runs
from coordexp.runs.reporter import committed_checkpoints, read_rows
from coordexp.train.setup.weighted_terms import weighted_terms
from tests.support.metrics import unregistered
from tests.support.training import prepared, small_config, train_here

pytestmark = [pytest.mark.ci, pytest.mark.timeout(300)]

FACTOR = ["custom.coord_tokens", "objective", "custom.coord_soft_ce_w1"]
T = {"custom": {"coord_tokens": {"enabled": False}}}
T_NTL = T | {"objective": {"extra": {"ntl": {"weight": 10.0}}}}


def text_config(runs_dir: Path, group: str = "T", **sections: object) -> ExperimentConfig:
    """Return a run of the embedded base, which can write digits already, on 24 + 6 images."""
    whole = small_config(Path("embedded"), runs_dir, group="A").model_dump(mode="json")
    whole["evaluation"] |= {"max_new_tokens": 120}
    whole["experiment"] |= {"group": group}
    whole["custom"]["coord_tokens"] |= {"enabled": False}
    return ExperimentConfig.model_validate({**whole, **sections})


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> ExperimentConfig:
    """A run with the number loss, so that every part of the arm takes part."""
    config = text_config(tmp_path_factory.mktemp("runs"), objective={"extra": {"ntl": {"weight": 10.0}}})
    prepared(config)
    train_here(config)
    return config


def test_nothing_is_added_to_the_model(finished):
    merged = RunFolder.of(finished).merged
    tokenizers = [
        AutoTokenizer.from_pretrained(path) for path in (merged, ExperimentFolder.of(finished).base(finished))
    ]
    assert all("<|coord_0|>" not in tokenizer.get_vocab() for tokenizer in tokenizers)
    base, after = (
        load_file(path / "model.safetensors") for path in (ExperimentFolder.of(finished).base(finished), merged)
    )
    name = "model.language_model.embed_tokens.weight"
    assert torch.equal(base[name], after[name])  # no row more, and none changed
    newest = committed_checkpoints(RunFolder.of(finished).path)[-1]
    assert not [key for key in load_file(newest / "adapter_model.safetensors") if "offset" in key]
    report = json.loads((merged / "merge_report.json").read_text())
    assert report["num_offset_rows"] == 0
    assert report["lost_at_logits"] < 1e-3


def test_both_readings_are_the_written_numbers_and_the_metrics_are_registered(finished):
    folder = RunFolder.of(finished)
    for decoding in ("constrained", "free"):
        files = folder.evaluation("final").decoding(decoding)
        assert files.detections("argmax").read_bytes() == files.detections("expected").read_bytes()
        objects = [item for line in files.objects.read_text().splitlines() for item in json.loads(line)["objects"]]
        assert objects
        for item in objects:
            assert item["expected"] == decode_array(item["bins"]).tolist()
            assert item["width"] == [0.0] * 4
            assert 0 < item["score"] <= 1
    metrics = {name: value for row in read_rows(folder.metrics) for name, value in row.metrics.items()}
    assert unregistered(metrics) == []
    assert metrics["constrained/argmax/AP"] == metrics["constrained/expected/AP"] > 0.5  # the base can do this already
    assert metrics["constrained/malformed"] == 0
    assert 19 <= metrics["constrained/tokens_per_object"] <= 22  # four markers and digits, a word or two
    assert metrics["constrained/seconds_per_object"] > 0
    assert {
        "train_text_loss",
        "train_coord_ce_loss",
        "train_extra/ntl",
        "coord_diag/coord_vocab_mass",
    } <= metrics.keys()
    assert not {"train_coord_loss", "coord_diag/expected_bin_mae", "coord_diag/w1"} & metrics.keys()


def test_the_verb_evaluates_merged_and_adapter_and_is_told_when_it_cannot(finished, tmp_path, capsys):
    source = source_of(finished.data, "val", data_dir=ExperimentFolder.of(finished).data)
    folder = RunFolder.of(finished)
    newest = committed_checkpoints(folder.path)[-1]
    files = ["--annotations", str(source.ground_truth()), "--images", str(source.images)]
    common = [*files, "--batch-size", "6", "--max-new-tokens", "120", "--threads", "1"]
    own = folder.evaluation("final").decoding("constrained")
    bins = [[item["bins"] for item in json.loads(line)["objects"]] for line in own.objects.read_text().splitlines()]
    base = str(ExperimentFolder.of(finished).base(finished))
    ways = {
        "merged": ["--model", str(folder.merged)],
        "adapter": ["--model", base, "--adapter", str(newest), "--answer", "text"],
        "adapter alone": ["--adapter", str(newest)],
    }
    for name, model in ways.items():
        output = tmp_path / name
        assert main(["evaluate", *model, *common, "--output", str(output), "--decoding", "constrained"]) == 0
        lines = (output / "constrained" / "objects.jsonl").read_text().splitlines()
        assert [[item["bins"] for item in json.loads(line)["objects"]] for line in lines] == bins
    capsys.readouterr()
    assert main(["evaluate", "--model", str(folder.merged), *common, "--answer", "coord"]) == 2
    assert (
        "the tokenizer has no coord tokens; evaluate a checkpoint trained to write them, digits with --answer text"
        in capsys.readouterr().err
    )


def test_the_proof_names_the_way_to_write_a_coordinate_and_its_consequences(tmp_path):
    whole = text_config(tmp_path).model_dump(mode="json")
    whole["custom"]["coord_tokens"] |= {"enabled": True}
    whole["ablation"] = {"groups": {"T": T, "T_ntl": T_NTL, "A": {}}, "factor": FACTOR}
    plans = plan_runs(ExperimentConfig.model_validate(whole))
    prints, undeclared = fingerprint_runs(plans, prepare_all(plans))
    assert undeclared == []
    base = {"weights", "base/config.json", "base/tokenizer.json"}
    assert set(diff(prints["T-s0"], prints["A-s0"])) == {"custom.coord_tokens.enabled", "tokens", *base}
    within = set(diff(prints["T-s0"], prints["T_ntl-s0"]))
    assert within == {"objective.extra.ntl.weight", "coordexp/losses/terms/ntl.py"}


@pytest.mark.parametrize(
    ("sections", "facts"),
    [
        (
            {"objective": {"extra": {"smooth_l1": 1.0}}},
            r"objective\.extra\.smooth_l1.*\bbins\b.*custom\.coord_tokens\.enabled: false",
        ),
        ({"objective": {"extra": {"w1": 1.0}}}, r"objective\.extra\.w1.*\bbins\b"),
    ],
)
def test_terms_of_the_other_kind_are_refused(tmp_path, sections, facts):
    with pytest.raises(ConfigError, match=facts):
        weighted_terms(text_config(tmp_path, **sections))


@pytest.mark.usefixtures("undrawn")
@pytest.mark.slow
def test_the_whole_experiment_runs_through_and_reports(make_runs_dir, capsys):
    runs_dir = make_runs_dir()
    small = [
        *(
            "data.shapes.num_train=16",
            "data.shapes.num_val=6",
            "training.max_steps=2",
            "training.per_device_batch_size=4",
        ),
        *(
            "evaluation.every_steps=null",
            "evaluation.loss_images=4",
            "evaluation.batch_size=6",
            "training.logging_steps=1",
        ),
        *("ablation.groups=[T,A]", "cluster.executor=inline", f"experiment.runs_dir={runs_dir}"),
    ]
    config = str(Path(__file__).parents[2] / "experiments" / "representation.yaml")
    assert main(["ablation", "--config", config, *small]) == 0
    report = runs_dir / "representation" / "report"
    text = (report / "report.md").read_text()
    assert "What an object costs" in text
    assert "(custom.coord_tokens, objective, custom.coord_soft_ce_w1)" in text
    page = (report / "report.html").read_text()
    assert text.count("coordinates written as digits of plain text, no coord tokens; boxes read as written") == 1
    assert re.search(r"no distribution over bins: T\b", page)
    assert re.search(r"\bT writes coordinates in digits", page)
    assert "What is missing" not in page, "a group that cannot have something lacks nothing"
    assert (
        "coordinates are digits, no row is added" in (runs_dir / "representation" / "T-s0" / "progress.log").read_text()
    )
    capsys.readouterr()


def test_the_other_verbs_take_it(tmp_path, capsys):
    """Doctor, inspect and the plan of a text arm, and one sentence for offsets that its factor does not hold."""
    config = str(Path(__file__).parents[2] / "experiments" / "representation.yaml")
    small = [
        "data.shapes.num_train=16",
        "data.shapes.num_val=6",
        "ablation.groups=[T]",
        f"experiment.runs_dir={tmp_path}",
    ]
    assert main(["doctor", "--config", config, *small, "cluster.executor=inline"]) == 0
    assert "none is added; digits" in capsys.readouterr().out
    assert main(["inspect", "--config", config, *small, "experiment.group=T", "--output", str(tmp_path / "seen")]) == 0
    assert "<|box_start|>" in capsys.readouterr().out
    contradiction = ["ablation.groups.T.custom.coord_offset.enabled=true"]
    assert main(["ablation", "--config", config, "--dry-run", *small, *contradiction]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "custom.coord_offset.enabled" in said[0]
