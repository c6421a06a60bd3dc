"""What could make one run differ from the others without a key that says so: planted one at a time, always noticed."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import CheckpointError, ComparisonError, DataError
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.runs.status import read_status
from coordexp.train.run import set_up_process
from tests.support import planted
from tests.support.ablation import run
from tests.support.checkpoints import edit_json
from tests.support.planted import Confirming, config_of
from tests.support.training import write_base

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("unreported")]


@dataclass
class Begun:
    """An experiment of which group A is finished, and C is to come."""

    source: Path
    runs_dir: Path

    @property
    def folder(self) -> ExperimentFolder:
        return ExperimentFolder(self.runs_dir / "planted")

    @property
    def base(self) -> Path:
        return self.folder.base(config_of(self.source, self.runs_dir, "A"))

    def add_c(self, function: Confirming | None = None, **ablation: object) -> tuple[int, str]:
        return run(config_of(self.source, self.runs_dir, "A,C", **ablation), function or Confirming())

    def message(self) -> str:
        """How C ended, which must have been before its first step."""
        status = read_status(RunFolder(self.folder.path / "C-s0").path)
        assert status is not None
        assert (status.state, status.step) == ("failed", 0)
        return status.message


@pytest.fixture(scope="module")
def finished(make_runs_dir, tmp_path_factory) -> Begun:
    begun = Begun(write_base(tmp_path_factory.mktemp("base") / "base"), make_runs_dir())
    with pytest.MonkeyPatch.context() as patched:  # fixtures of one test are not there yet
        patched.setattr("coordexp.report.write.report_experiment", lambda *_, **__: None)
        assert run(config_of(begun.source, begun.runs_dir, "A"), Confirming())[0] == 0
    return begun


@pytest.fixture
def begun(finished, tmp_path) -> Iterator[Begun]:
    """The experiment, put back afterwards: everything in it has the same bytes for the next test."""
    kept = {place: tmp_path / f"kept-{number}" for number, place in enumerate((finished.source, finished.folder.path))}
    for place, copy in kept.items():
        shutil.copytree(place, copy)
    yield finished
    for place, copy in kept.items():
        shutil.rmtree(place)
        shutil.copytree(copy, place)


def _other_mean(directory: Path) -> None:
    edit_json(directory / "preprocessor_config.json", image_mean=[0.4, 0.5, 0.5])


def _other_value(directory: Path) -> None:
    file = directory / "config.json"
    text = json.loads(file.read_text())["text_config"]
    edit_json(file, text_config=text | {"rms_norm_eps": 1e-5})


def _other_template(directory: Path) -> None:
    file = directory / "chat_template.jinja"
    file.write_text(file.read_text() + "\n{# #}")


def _other_weights(directory: Path) -> None:
    file = directory / "model.safetensors"
    weights = load_file(file)
    name = next(name for name in sorted(weights) if name.endswith("norm.weight"))
    save_file(weights | {name: weights[name] + 0.01}, file, metadata={"format": "pt"})


def _other_image(begun: Begun) -> None:
    images = sorted(path for path in begun.folder.data.rglob("*") if path.suffix in (".png", ".jpg"))
    path = images[len(images) // 2]
    changed, times = bytearray(path.read_bytes()), path.stat()
    changed[len(changed) // 2] ^= 1
    path.write_bytes(changed)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # nor does its date say so


BETWEEN_COMMANDS: dict[str, tuple[Callable[[Begun], None], type[Exception], str]] = {
    "mean of the checkpoint": (
        lambda begun: _other_mean(begun.source),
        CheckpointError,
        r"base: preprocessor_config\.json changed since experiment planted made its base from it",
    ),
    "value of the checkpoint": (
        lambda begun: _other_value(begun.source),
        CheckpointError,
        r"base: config\.json changed since experiment planted",
    ),
    "weights of the checkpoint": (
        lambda begun: _other_weights(begun.source),
        CheckpointError,
        r"base: model\.safetensors changed since",
    ),
    "mean of the base": (
        lambda begun: _other_mean(begun.base),
        ComparisonError,
        r"\n  base/preprocessor_config\.json  ",
    ),
    "value of the base": (lambda begun: _other_value(begun.base), ComparisonError, r"\n  base/config\.json  "),
    "template of the base": (
        lambda begun: _other_template(begun.base),
        ComparisonError,
        r"\n  base/chat_template\.jinja  ",
    ),
    "weights of the base": (lambda begun: _other_weights(begun.base), ComparisonError, r"\n  weights  "),
    "an image": (_other_image, DataError, r"1 of 4 training pictures"),
}


def test_nothing_planted_nothing_noticed(begun):
    assert begun.add_c()[0] == 0
    stored = [json.loads((begun.folder.path / name / "fingerprint.json").read_text()) for name in ("A-s0", "C-s0")]
    assert stored[0]["worker"] == stored[1]["worker"]
    assert stored[0]["files"].keys() >= {"base/config.json", "base/preprocessor_config.json", "base/tokenizer.json"}
    assert stored[0]["worker"]["threads"] == torch.get_num_threads()
    assert stored[0]["worker"]["packages.torch"] == torch.__version__
    assert len(stored[0]["machine"]["installed_packages"]) == 16
    assert begun.add_c()[0] == 0  # all finished


@pytest.mark.parametrize("plant", BETWEEN_COMMANDS)
def test_what_changes_between_two_commands_is_noticed_before_anything_runs(begun, plant):
    change, error, sentence = BETWEEN_COMMANDS[plant]
    change(begun)
    function = Confirming()
    with pytest.raises(error, match=sentence):
        begun.add_c(function)
    assert function.done == []


@contextlib.contextmanager
def _threads() -> Iterator[None]:
    def one_more(config: ExperimentConfig) -> None:
        set_up_process(config)
        torch.set_num_threads(torch.get_num_threads() + 1)

    with _switch(planted, "set_up_process", one_more):
        yield


@contextlib.contextmanager
def _switch(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    yield
    setattr(owner, name, before)


@pytest.mark.parametrize(
    ("plant", "named"),
    [
        (_threads, r"threads is \d+ here and \d+ there \(training\.num_threads sets the threads"),
        (lambda: _switch(torch.backends.cudnn, "allow_tf32", False), "cudnn.allow_tf32 is false here and true there"),
        (lambda: _switch(torch.backends.cudnn, "benchmark", True), "cudnn.benchmark is true here and false there"),
        (
            lambda: _switch(torch.backends.cuda.matmul, "allow_tf32", True),
            'float32_matmul_precision is "high" here and "highest" there',
        ),
    ],
)
def test_a_switch_is_noticed_by_the_worker(begun, plant, named):
    with plant():
        assert begun.add_c()[0] == 1
    assert re.search(r"C-s0\b.*\bA-s0\b", begun.message())
    assert re.search(named, begun.message())
    assert begun.add_c()[0] == 0  # without it the same command continues


def test_differences_of_a_worker_can_be_allowed_and_are_recorded(begun):
    with _threads():
        assert begun.add_c(allow_differences=True)[0] == 0
    stored = [json.loads((begun.folder.path / name / "fingerprint.json").read_text()) for name in ("A-s0", "C-s0")]
    assert stored[1]["worker"]["threads"] == stored[0]["worker"]["threads"] + 1
