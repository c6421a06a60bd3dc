"""An adapter whose base has another path here: every command names ``--base``, and works with it."""

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

from coordexp.cli.main import main
from coordexp.errors import CheckpointError
from coordexp.model.loading import load
from tests.support.checkpoints import edit_json
from tests.support.doctor import write_coco

pytestmark = pytest.mark.timeout(240)
ELSEWHERE = "/root/autodl-tmp/models/Qwen3-VL-4B-Instruct"


@pytest.fixture
def adapter(make_base, make_adapter, tmp_path) -> Path:
    return Path(shutil.copytree(make_adapter(make_base(), tuning="lora"), tmp_path / "adapter"))


def _commands(adapter: Path, tmp_path: Path) -> dict[str, list[str]]:
    annotations, images = write_coco(tmp_path / "coco", "val", num_images=1)
    picture = str(next(images.iterdir()))
    few = ["--max-new-tokens", "4"]
    return {
        "merge": ["merge", "--adapter", str(adapter), "--output", str(tmp_path / "merged")],
        "evaluate": [
            *("evaluate", "--adapter", str(adapter), "--annotations", str(annotations), "--images", str(images)),
            *("--output", str(tmp_path / "results"), *few),
        ],
        "predict": ["predict", "--model", str(adapter), picture, "--output", str(tmp_path / "found"), *few],
    }


@pytest.mark.parametrize("verb", ["merge", "evaluate", "predict"])
@pytest.mark.parametrize("named", [ELSEWHERE, "output/checkpoint-100", None])
def test_a_base_that_is_not_here_is_given_with_base(adapter, make_base, tmp_path, capsys, monkeypatch, verb, named):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # as for anybody without a network
    edit_json(adapter / "adapter_config.json", base_model_name_or_path=named)
    command = _commands(adapter, tmp_path)[verb]
    assert main(command) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert str(adapter) in error
    assert "--base" in error
    assert named is None or named in error
    assert main([*command, "--base", str(make_base())]) == 0


def test_the_python_functions_say_so_too(adapter, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    edit_json(adapter / "adapter_config.json", base_model_name_or_path="output/checkpoint-100")
    with pytest.raises(CheckpointError, match=r"output/checkpoint-100.*--base"):
        load("output/checkpoint-100", adapter)
    with pytest.raises(CheckpointError, match="^other/one") as raised:
        load("other/one", adapter)
    assert "--base" not in str(raised.value)  # that base was given


def test_a_base_of_nothing_is_refused(adapter, make_base, tmp_path, capsys):
    commands, base = _commands(adapter, tmp_path), str(make_base())
    plain = ["--model", base, "--base", base]
    assert main(["predict", *plain, *commands["predict"][3:]]) == 2
    assert "--base" in capsys.readouterr().err
    assert main([*commands["evaluate"][:1], "--base", base, *commands["evaluate"][3:]]) == 2
    assert "--base" in capsys.readouterr().err
    assert main([*commands["evaluate"], *plain]) == 2
    error = capsys.readouterr().err
    assert "--model" in error
    assert "--base" in error


def test_an_experiment_on_an_adapter_says_how_it_becomes_a_checkpoint(adapter, tmp_path, capsys):
    assert main(["doctor", "--format", "json", f"model.path={adapter}", f"experiment.runs_dir={tmp_path}/runs"]) == 2
    failures = [
        finding for finding in json.loads(capsys.readouterr().out)["findings"] if finding["verdict"] == "failure"
    ]
    assert [failure["check"] for failure in failures] == ["checkpoint"]
    assert f"coordexp merge --adapter {adapter}" in failures[0]["sentence"]
