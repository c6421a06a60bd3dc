"""Each family goes the way of a user: doctor, plan, an ablation to its table, then what one does with its models."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

from coordexp.cli.main import main
from coordexp.config import load_config
from coordexp.evaluate.predict import predict
from coordexp.model.checkpoint.trained_with import read_trained_with
from coordexp.model.families import FAMILIES
from coordexp.model.loading import load
from coordexp.model.merging.proof import default_samples, logits_of
from coordexp.model.tiny.parts import write_tiny
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.runs.reporter import LocalReporter, committed_checkpoints, read_rows
from coordexp.train.run import train_run
from tests.support.strategies import losses_of, run_on
from tests.support.training import first_step, prepared, small_config, train_here, with_changes

pytestmark = pytest.mark.timeout(900)  # of a busy machine; a quiet one takes half a minute
CONFIG = str(Path(__file__).parents[2] / "experiments" / "representation.yaml")
GROUPS = ("T", "A", "C", "D")
SMALL = (
    "data.shapes.num_train=8",
    "data.shapes.num_val=4",
    "training.max_steps=2",
    "training.checkpoint_steps=2",
    "training.logging_steps=1",
    "training.per_device_batch_size=4",
    "evaluation.every_steps=null",
    "evaluation.loss_images=2",
    "evaluation.batch_size=4",
    "evaluation.max_new_tokens=24",
    "cluster.executor=inline",
    f"ablation.groups=[{','.join(GROUPS)}]",
)


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def family(request):
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def base(family, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp(family.model_type) / "base"
    write_tiny(family, folder)
    return folder


@pytest.fixture(scope="module")
def command(base, make_runs_dir) -> list[str]:
    return ["--config", CONFIG, f"model.path={base}", f"experiment.runs_dir={make_runs_dir()}", *SMALL]


@pytest.fixture(scope="module")
def experiment(command) -> Path:
    """The folder of an ablation that is done."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coordexp.report.page.page.chart_svg", lambda chart, *, label: "<svg></svg>")
        patch.setattr("coordexp.report.write.write_plots", lambda study, output: [])
        assert main(["ablation", *command]) == 0
    return ExperimentFolder.of(load_config(CONFIG, command[2:])).path


def test_doctor_and_plan_say_what_they_know(family, command, capsys):
    assert main(["doctor", *command]) == 0
    said = capsys.readouterr().out
    assert ("not estimated for this family" in said) is not family.is_sized
    assert ("loads all of it" in said) is (family.on_disk == "converted")
    assert main(["ablation", "--dry-run", *command]) == 0
    said = capsys.readouterr().out
    assert all(f"{group}-s0" in said for group in GROUPS)


@pytest.mark.slow
def test_the_groups_are_trained_to_the_table(family, experiment):
    table = (experiment / "report" / "report.csv").read_text()
    for group in GROUPS:
        assert f"\nrepresentation,group,{group}," in table
        run = experiment / f"{group}-s0"
        rows = read_rows(run / "metrics.jsonl")
        assert [row.step for row in rows if "train_total_loss" in row.metrics] == [1, 2]
        assert ("slower than other families" in (run / "progress.log").read_text()) is family.recurrent
        for decoding in ("constrained", "free"):
            assert len((run / "eval" / "final" / decoding / "objects.jsonl").read_text().splitlines()) == 4


@pytest.mark.slow
def test_the_merged_checkpoint_is_stock_and_is_what_was_trained(family, experiment, tmp_path, capsys):
    run = experiment / "C-s0"
    adapter = committed_checkpoints(run)[-1]
    stock, report = AutoModelForImageTextToText.from_pretrained(run / "merged", dtype="auto", output_loading_info=True)
    assert not any(report.values())
    trained = load(next(experiment.glob("base*")), adapter)
    samples = default_samples(trained.processor)
    theirs, ours = logits_of(stock, samples), logits_of(trained.model, samples)
    torch.testing.assert_close(theirs, ours, atol=1e-3, rtol=1e-3)
    assert read_trained_with(run / "merged").template == {"enable_thinking": False}
    capsys.readouterr()
    assert main(["merge", "--adapter", str(adapter), "--output", str(tmp_path / "again")]) == 0
    assert "vllm serve" not in capsys.readouterr().out  # this template knows nothing of thoughts
    again = AutoModelForImageTextToText.from_pretrained(tmp_path / "again", dtype="auto").state_dict()
    for name, tensor in stock.state_dict().items():
        assert torch.equal(again[name], tensor), name


def _objects(path: Path) -> dict[int, list[dict]]:
    return {line["image_id"]: line["objects"] for line in map(json.loads, path.read_text().splitlines())}


@pytest.mark.slow
def test_what_it_answered_is_answered_again_and_read_again(family, experiment, tmp_path, capsys):
    merged, final = experiment / "C-s0" / "merged", experiment / "C-s0" / "eval" / "final" / "constrained"
    annotations = experiment / "data" / "instances_val.json"
    images = {one["id"]: one["file_name"] for one in json.loads(annotations.read_text())["images"]}
    objects = _objects(final / "objects.jsonl")
    pictures = [experiment / "data" / "val" / images[image_id] for image_id in objects]
    capsys.readouterr()
    for picture, expected in zip(pictures, objects.values(), strict=True):  # alone, and in a batch of four before
        (found,) = predict(merged, [picture], max_new_tokens=24)
        assert [list(item.bins) for item in found.objects] == [item["bins"] for item in expected]
    ask = ["--model", str(merged), "--annotations", str(annotations), "--images", str(pictures[0].parent)]
    again = ["--generations", str(final / "answers.jsonl"), "--decoding", "constrained", "--output", str(tmp_path)]
    assert main(["evaluate", *ask, *again]) == 0
    assert "slower than other families" not in capsys.readouterr().out  # nothing is generated
    for image_id, read in _objects(tmp_path / "constrained" / "objects.jsonl").items():
        for item, expected in zip(read, objects[image_id], strict=True):
            assert item["bins"] == expected["bins"]
            assert item["score"] == pytest.approx(expected["score"], rel=1e-3)
            assert item["expected"] == pytest.approx(expected["expected"], abs=1e-3)


@pytest.mark.slow
def test_accumulated_gradients_are_those_of_one_batch(base, tmp_path):
    whole = prepared(small_config(base, tmp_path, per_device_batch_size=4, max_grad_norm=1e9))
    parts = with_changes(whole, training={"per_device_batch_size": 1, "gradient_accumulation_steps": 4})
    (expected, loss), (found, accumulated) = first_step(whole), first_step(parts)
    assert accumulated == pytest.approx(loss, rel=1e-5)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.slow
def test_a_resumed_run_ends_in_the_same_bits(base, tmp_path):
    weights = []
    for stop in (None, 1):
        config = small_config(base, tmp_path / str(stop), max_steps=2, checkpoint_steps=1, per_device_batch_size=2)
        folder = RunFolder.of(prepared(config))
        if stop is not None:
            train_here(config, stop=stop)
        lines = []
        train_run(config, reporter=LocalReporter(folder.path), print_line=lines.append, merges=False)
        assert any("resumes at step 1" in line for line in lines) is (stop is not None)
        weights.append(load_file(committed_checkpoints(folder.path)[-1] / "adapter_model.safetensors"))
    for name, tensor in weights[0].items():
        assert torch.equal(weights[1][name], tensor), name


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("model_type", sorted(FAMILIES.keys() - {"qwen3_vl"}))  # its own is in test_strategies.py
def test_two_processes_under_either_strategy_are_one(model_type, tmp_path):
    """The same losses and the same adapter after two steps."""
    write_tiny(FAMILIES[model_type], tmp_path / "base")
    losses, weights = [], []
    for world, strategy in ((1, "ddp"), (2, "ddp"), (2, "zero2")):
        steps = {"max_steps": 2, "per_device_batch_size": 2, "gradient_accumulation_steps": 2 // world}
        small = small_config(tmp_path / "base", tmp_path / f"{strategy}-{world}", **steps)
        config = prepared(with_changes(small, cluster={"num_workers": world, "strategy": strategy}))
        run_on(world, config, tmp_path / "log", stop=2)
        losses.append(losses_of(config))
        (newest,) = committed_checkpoints(RunFolder.of(config).path)
        weights.append(load_file(newest / "adapter_model.safetensors"))
    assert len(losses[0]) == 2
    for found, adapter in zip(losses[1:], weights[1:], strict=True):
        assert found == pytest.approx(losses[0], rel=1e-5)
        assert adapter.keys() == weights[0].keys()
        for name, tensor in weights[0].items():
            torch.testing.assert_close(adapter[name], tensor, rtol=0, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
