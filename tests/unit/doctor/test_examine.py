"""The whole examination: what it says together, its exit code, and that it leaves no trace."""

import json
import re
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants
from rich.console import Console

from coordexp.cli.main import main
from coordexp.cli.views import examination_json, show_examination
from coordexp.doctor import examine as module
from coordexp.doctor.examine import Examination, examine
from coordexp.doctor.machine import Machine
from coordexp.doctor.memory import EVALUATION, TRAINING, MemoryEstimate
from coordexp.findings import Finding
from coordexp.model.checkpoint.directory import TINY_BASE
from tests.support.doctor import coco_overrides, failures, of, sparse_checkpoint, tree

ROOT = Path(__file__).parents[3]
TINY = ROOT / "experiments" / "tiny.yaml"
GIB = 2**30


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Depend on no cluster and no server of this machine."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def _examine(tmp_path: Path, *overrides: str, config: Path = TINY) -> Examination:
    return examine(config, [f"experiment.runs_dir={tmp_path}/runs", *overrides])


def _machine(monkeypatch, *, gpu_gib: int | None = None, ram_gib: int = 16) -> None:
    gpus = () if gpu_gib is None else (gpu_gib * GIB,)
    machine = Machine(("H",) * len(gpus), gpus, ram_gib * GIB, 8)
    monkeypatch.setattr(Machine, "here", lambda: machine)


def test_tiny_is_well_and_nothing_is_written(tmp_path):
    found = _examine(tmp_path)
    assert {finding.verdict for finding in found.findings} == {"ok"}, found.findings
    assert found.would_start
    assert tree(tmp_path) == {}
    checks = [finding.check for finding in found.findings]
    for check in ("configuration", "runs_dir", "weights", "tokenizer", "optimizer", "memory", "disk", "ray", "mlflow"):
        assert checks.count(check) == 1


def _without_image_token(tokenizer: dict) -> None:
    tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["content"] != "<|image_pad|>"]


def _with_some_coord_tokens(tokenizer: dict) -> None:
    last = tokenizer["added_tokens"][-1]
    tokenizer["added_tokens"].append({**last, "id": last["id"] + 1, "content": "<|coord_0|>"})


def _of_bytes(tokenizer: dict) -> None:
    tokenizer["model"] = {"type": "unheard of"}


@pytest.mark.parametrize("damage", [_without_image_token, _with_some_coord_tokens, _of_bytes, None])
def test_a_tokenizer_that_fails_is_one_failure(tmp_path, damage):
    base = Path(shutil.copytree(TINY_BASE, tmp_path / "base"))
    file = base / "tokenizer.json"
    if damage is None:
        file.unlink()
    else:
        tokenizer = json.loads(file.read_text())
        damage(tokenizer)
        file.write_text(json.dumps(tokenizer))
    # Pictures of any size: the longest sequence would be one of the largest that a processor allows.
    found = _examine(tmp_path, f"model.path={base}", *coco_overrides(tmp_path), "data.max_pixels=null")
    assert [finding.check for finding in found.findings if finding.verdict == "failure"] == ["tokenizer"]
    assert of(found, "memory")[0].verdict == "warning"


def test_a_model_that_is_not_here_is_not_blamed_for_the_largest_picture_there_could_be(tmp_path, monkeypatch):
    monkeypatch.setattr("coordexp.doctor.checkpoint.hub_answers", lambda: True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub_id = "model.path=Qwen/Qwen3-VL-2B-Instruct"
    found = _examine(tmp_path, hub_id, *coco_overrides(tmp_path), "data.max_pixels=null", "data.min_pixels=null")
    assert not [finding for finding in found.findings if finding.verdict == "failure"]
    assert of(found, "memory")[0].verdict == "warning"


def test_every_failure_is_shown_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    (tmp_path / "runs").write_text("a file")
    found = _examine(
        tmp_path,
        "data.format=coco",
        *(f"data.{split}_annotations={tmp_path}/{split}.json" for split in ("train", "val")),
        *(f"data.{split}_images={tmp_path}/{split}" for split in ("train", "val")),
        f"model.path={tmp_path}/model",
        "tracking.uri=http://127.0.0.1:9",
    )
    failed = failures(found)
    expected = {"train annotations", "train images", "val annotations", "val images", "checkpoint", "runs_dir", "ray"}
    assert failed.keys() == expected | {"mlflow"}
    assert not found.would_start
    assert tree(tmp_path).keys() == {f"{tmp_path}/runs"}


def test_coco_files_give_the_longest_sequence(tmp_path):
    found = _examine(tmp_path, *coco_overrides(tmp_path), "data.max_pixels=9216")
    assert found.would_start, failures(found)
    # 64 x 48 pixels are 8 x 6 patches of 8 pixels, twelve tokens; 22 around the image; one object at most.
    assert found.longest_batch is not None
    sequence = found.longest_batch.sequence
    assert (sequence.prompt, sequence.patches) == (22 + 12, 48)
    num_target = sequence.length - sequence.prompt
    assert num_target == 7 + 1 + 2  # markers and coordinates, the end, "red circle"


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_description_that_would_close_its_object(tmp_path, split):
    overrides = coco_overrides(tmp_path)
    annotations = tmp_path / f"{split}.json"
    data = json.loads(annotations.read_text())
    data["categories"].append({"id": 2, "name": "<|box_end|>"})
    annotations.write_text(json.dumps(data))
    assert not of(_examine(tmp_path, *overrides, "data.max_pixels=9216"), f"{split} descriptions")
    data["annotations"][0]["category_id"] = 2
    annotations.write_text(json.dumps(data))
    (found,) = of(_examine(tmp_path, *overrides, "data.max_pixels=9216"), f"{split} descriptions")
    assert found.verdict == "failure"
    assert "1 of 2 descriptions" in found.sentence
    assert "'<|box_end|>'" in found.sentence


def test_memory_is_compared_with_the_gpu(tmp_path, monkeypatch):
    base = sparse_checkpoint(tmp_path / "base", model="2B")
    overrides = (
        f"model.path={base}",
        "model.dtype=bfloat16",
        "training.precision=bfloat16",
        "cluster.gpus_per_worker=1.0",
    )

    def memory(gpu_gib: int | None, *more: str) -> Finding:
        _machine(monkeypatch, gpu_gib=gpu_gib)
        (finding,) = of(_examine(tmp_path, *overrides, "data.max_pixels=409600", *more), "memory")
        return finding

    without_gpu = memory(None)
    assert without_gpu.verdict == "ok"
    assert "no GPU" in without_gpu.sentence
    small = memory(6)
    assert small.verdict == "failure"
    assert "6.00 GiB" in small.sentence
    assert "training.gradient_checkpointing: true" in small.sentence
    answers = ("training.gradient_checkpointing=true", "evaluation.batch_size=100")
    assert "evaluation.batch_size" in memory(6, *answers).sentence


def test_a_longest_batch_that_may_not_fit_warns(monkeypatch):
    monkeypatch.setattr(module, "local_slots", lambda _: 2)
    run = module.load_config(TINY)
    needed, usual = (_memory(training=size) for size in (6 * GIB, 4 * GIB))
    for ram, expected in ((100, "ok"), (10, "warning"), (5, "failure")):
        found = module.judge_memory(run, needed, usual, Machine((), (), ram * GIB, 8), on_gpu=False)
        assert found.verdict == expected
        assert "2 processes" in found.sentence


@pytest.mark.parametrize(
    ("memory", "checkpointing", "keys"),
    [
        ({"training": 2, "evaluation": 3}, False, ["evaluation.batch_size", "evaluation.max_new_tokens"]),
        ({"training": 2, "evaluation": 3}, True, ["evaluation.batch_size", "evaluation.max_new_tokens"]),
        (
            {"training": 3, "evaluation": 2},
            False,
            ["training.gradient_checkpointing", "training.per_device_batch_size"],
        ),
        ({"training": 3, "evaluation": 2}, True, ["training.per_device_batch_size"]),
    ],
)
def test_the_advice_is_for_the_phase_that_does_not_fit(memory, checkpointing, keys):
    run = module.load_config(TINY, [f"training.gradient_checkpointing={str(checkpointing).lower()}"])
    needed = _memory(**{phase: size * GIB for phase, size in memory.items()})
    found = module.judge_memory(run, needed, needed, Machine((), (), GIB, 8), on_gpu=False)
    named = re.findall(r"\b(?:training|evaluation|data)\.\w+", found.sentence)
    assert named == [*keys, "data.max_pixels"]


def _memory(*, training: int, evaluation: int = 0) -> MemoryEstimate:
    return MemoryEstimate({TRAINING: {"all": training}, EVALUATION: {"all": evaluation}})


def test_groups_with_different_data_are_all_examined(tmp_path):
    found = _examine(
        tmp_path,
        "ablation.groups={A: {data: {structure: native}}, B: {data: {structure: spec}}}",
        "ablation.factor=[data.structure]",
    )
    assert len(of(found, "tokenizer")) == 2
    assert len(of(found, "train data")) == len(of(found, "weights")) == 1
    assert "1,003 tokens" in of(found, "tokenizer")[1].sentence


def _shown(found: Examination) -> str:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        show_examination(found, console)
    return console.export_text()


def test_table_and_json():
    found = Examination((Finding("a", "ok", "[red] fine"), Finding("b", "failure", "broken; mend it")))
    text = _shown(found)
    assert "[red] fine" in text
    assert "not start: 1 failure" in text
    value = json.loads(examination_json(found))
    assert value["would_start"] is False
    assert value["findings"][1] == {"check": "b", "verdict": "failure", "sentence": "broken; mend it"}
    warned = Examination((Finding("a", "warning", "look"),))
    assert "would start (1 warning)" in _shown(warned)


def test_command_and_exit_codes(tmp_path, capsys):
    runs_dir = f"experiment.runs_dir={tmp_path}/runs"
    assert main(["doctor", "--config", str(TINY), runs_dir, "--format", "json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["would_start"] is True
    training = value["memory"]["training"]
    assert training["bytes"] == sum(training["summands"].values())
    assert value["longest_sequence"]["length"] > value["longest_sequence"]["prompt"]
    assert main(["doctor", "--config", str(TINY), runs_dir, "cluster.gpus_per_worker=999.0"]) == 2
    text = capsys.readouterr().out
    assert "1 x (0.66 CPUs, 999 GPUs)" in text
    assert "not start: 1 failure" in text
