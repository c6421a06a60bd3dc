"""What SECURITY.md promises, each as a test that goes red when it is broken; ruff's S rules read the sources."""

import ast
import base64
import hashlib
import importlib.metadata
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import ValidationError
from safetensors.torch import save_file

from coordexp.cli.report import folder_name
from coordexp.cluster import session
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.adapter import read_adapter
from coordexp.model.checkpoint.directory import HUB_FILES, weight_files
from coordexp.report.page.page import render_page
from coordexp.report.records.artifacts import Artifacts
from coordexp.report.records.data import ExperimentData, RunRecord
from coordexp.report.store import store_report
from coordexp.report.study.study import Study
from coordexp.runs.reporter import LocalReporter
from coordexp.train.run import TrainingRun, make_trainer
from coordexp.train.setup.components import build_components
from tests.support.report import CATEGORIES, SPITEFUL
from tests.support.training import prepared, small_config, write_base

ROOT = Path(__file__).parents[2]


def test_no_source_asks_for_code_or_pickles_of_a_checkpoint() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "coordexp").rglob("*.py")}
    assert any("torch.load(" in text for text in sources.values()), "the search finds what it is about"
    assert any("trust_remote_code=False" in text for text in sources.values())
    for path, text in sources.items():
        assert not re.search(r"(trust_remote_code|allow_pickle)\s*=\s*(?!False)", text), path
        assert text.count("torch.load(") == text.count("weights_only=True"), path
    calls = [call for text in sources.values() for call in auto_loads(text)]
    assert len(calls) >= 3, "the search finds what it is about"
    for call in calls:
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert given.get("trust_remote_code") == "False", ast.unparse(call)


def auto_loads(source: str) -> list[ast.Call]:
    """The calls of ``Auto....from_pretrained``, which run a checkpoint's own code where that is trusted."""
    return [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and re.fullmatch(r"Auto\w+\.from_pretrained", ast.unparse(node.func))
    ]


def test_servers_listen_on_loopback() -> None:
    """But for pods behind a token and a policy, and a container that is published on loopback."""
    text = (ROOT / "Makefile").read_text()
    assert set(re.findall(r"--host[ =]+(\S+)", text)) == {"127.0.0.1"}
    assert "0.0.0.0" not in text
    folders = [ROOT / name for name in ("ray_jobs", "dashboards", "experiments")]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".yaml", ".yml", ".json", "")]
    for path in files:
        if path.is_file() and path.name != "compose.yaml" and "0.0.0.0" in path.read_text(encoding="utf-8"):
            assert re.search(r"authOptions:\s*\{?\s*mode: token", path.read_text()), path
            assert "kind: NetworkPolicy" in (path.parent / "network-policy.yaml").read_text()


def test_a_private_ray_session_is_on_loopback_and_takes_no_secrets_along(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, object]] = []
    for name in ("HF_TOKEN", "RAY_AUTH_TOKEN", "MLFLOW_TRACKING_PASSWORD", "WANDB_API_KEY"):
        monkeypatch.setenv(name, "hunter2-never-shown")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=lambda **given: started.append(given)))
    session.start_session(2, debug=False)
    assert started[0]["dashboard_host"] == "127.0.0.1"
    assert "hunter2" not in repr(started)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("security") / "base")


class Planted:
    """An object that writes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return _write_marker, (str(self.marker),)


def _write_marker(path: str) -> None:
    Path(path).write_text("code of a checkpoint ran")


def test_a_pickle_in_a_checkpoint_is_not_run_on_resume(base: Path, tmp_path: Path) -> None:
    """On the functions that the trainer's own resume calls; a control shows that the pickle would bite."""
    config = prepared(small_config(base, tmp_path))
    parts = build_components(config)
    run = TrainingRun.of(config, parts, reporter=LocalReporter(tmp_path / "run"), print_line=lambda line: None)
    trainer = make_trainer(run, tmp_path / "scratch")
    trainer.create_optimizer_and_scheduler(4)
    marker = tmp_path / "marker"
    for name, resume in (
        ("optimizer.pt", trainer._load_optimizer_and_scheduler),
        ("scheduler.pt", trainer._load_optimizer_and_scheduler),
        ("rng_state.pth", trainer._load_rng_state),
        ("pytorch_model.bin", trainer._load_from_checkpoint),
    ):
        folder = tmp_path / f"checkpoint-{name}"
        folder.mkdir()
        torch.save(trainer.optimizer.state_dict(), folder / "optimizer.pt")
        torch.save(trainer.lr_scheduler.state_dict(), folder / "scheduler.pt")
        torch.save(Planted(marker), folder / name)
        with pytest.raises((pickle.UnpicklingError, ValueError)):
            resume(str(folder))
        assert not marker.exists(), name
        torch.load(folder / name, weights_only=False)
        assert marker.exists()
        marker.unlink()


_DEEPSPEED = """
import sys, torch
from pathlib import Path
from coordexp.train.setup.zero import prepare_deepspeed
prepare_deepspeed()
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

class Planted:
    def __reduce__(self):
        return Path.touch, (Path(sys.argv[1]),)

file = sys.argv[1] + ".pt"
own = {"s": LossScaler(1.0), "z": ZeroStageEnum.gradients, "f": fragment_address(numel=2, start=1), "t": torch.ones(2)}
torch.save(own, file)
assert TorchCheckpointEngine().load(file)["f"].numel == 2
torch.save({"s": Planted()}, file)
try:
    TorchCheckpointEngine().load(file)
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.slow
def test_a_pickle_in_a_checkpoint_of_deepspeed_is_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    done = subprocess.run(
        [sys.executable, "-c", _DEEPSPEED, str(marker)], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.split()[-1] == "UnpicklingError"
    assert not marker.exists()


def test_the_hub_gives_no_code_and_no_pickles() -> None:
    patterns = HUB_FILES
    assert set(patterns) <= {"*.json", "*.jinja", "*.txt", "*.safetensors"}


@pytest.mark.parametrize("shard", ["../stolen.safetensors", "/etc/passwd", "sub/x.safetensors", "..", ""])
def test_an_index_cannot_name_a_file_elsewhere(shard: str, tmp_path: Path) -> None:
    save_file({"w": torch.zeros(1)}, tmp_path / "stolen.safetensors")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": shard}}))
    with pytest.raises(CheckpointError, match="beside the index"):
        weight_files(folder)


def test_an_adapter_cannot_name_a_module_to_import(tmp_path: Path) -> None:
    config = {"peft_type": "LORA", "megatron_config": {"x": 1}, "megatron_core": "this"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    save_file({"w": torch.zeros(1)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match="megatron_config is set"):
        read_adapter(tmp_path)


@pytest.mark.parametrize("name", ["../x", "a/b", "/x", "..", ".", ".hidden", "", "x\n", "x\0", "C:\\x"])
def test_names_that_become_folders_cannot_leave_theirs(name: str) -> None:
    for sections in (
        {"experiment": {"name": name}},
        {"experiment": {"group": name}},
        {"ablation": {"groups": {name: {}}}},
    ):
        with pytest.raises(ValidationError):
            ExperimentConfig.model_validate(sections)


def test_a_server_cannot_name_artifacts_outside_the_cache(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text("secret")
    run = RunRecord(run_id="r" * 32, group="A", seed=0, state="finished", parent_id="p" * 32)
    data = ExperimentData("tiny", f"sqlite:///{tmp_path}/x.db", (run,))
    artifacts = Artifacts(data, cache=tmp_path / "cache", runs_dir=tmp_path)
    asked: list[str] = []

    def download(run_id: str, path: str, target: str) -> str:
        asked.append(path)
        file = Path(target) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("fetched")
        return str(file)

    named = [
        SimpleNamespace(path=name, is_dir=False) for name in ("../../secret.json", str(secret), "data/instances.json")
    ]
    artifacts._client = SimpleNamespace(list_artifacts=lambda run_id, folder: named, download_artifacts=download)
    assert artifacts.annotations(run) == tmp_path / "cache" / run.parent_id / "data" / "instances.json"
    assert asked == ["data/instances.json"]
    spiteful = RunRecord(run_id="../..", group="A", seed=0, state="finished")
    assert artifacts.file(spiteful, Path("secret.json")) is None


def test_a_parameter_cannot_have_a_private_file_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = tmp_path / "id_rsa"
    private.write_text("hunter2-never-shown")
    params = {"data.format": "coco", "data.val_annotations": str(private)}
    run = RunRecord(run_id="r", group="A", seed=0, state="finished", params=params, parent_id="p")
    data = ExperimentData("tiny", f"sqlite:///{tmp_path}/x.db", (run,), parent_id="p")
    stored: list[Path] = []
    tracker = SimpleNamespace(
        log_file=lambda run_id, path, folder: stored.append(path),
        set_final=lambda run_id, metrics: None,
        set_tags=lambda run_id, tags: None,
        describe=lambda run_id, markdown: None,
    )
    monkeypatch.setattr("coordexp.report.store.open_tracker", lambda *given, **named: tracker)
    artifacts = Artifacts(data, cache=tmp_path / "cache", runs_dir=tmp_path)
    assert artifacts.annotations(run) == private
    assert store_report(Study(data), [tmp_path / "report.html"], artifacts) == ""
    assert stored == [tmp_path / "report.html"]


@pytest.mark.parametrize("name", ["..", ".", "../x", "a/../../b", "/etc"])
def test_an_experiment_of_a_server_cannot_choose_where_its_report_goes(name: str, tmp_path: Path) -> None:
    assert (tmp_path / folder_name(name)).resolve().parent == tmp_path.resolve()
    assert (tmp_path / folder_name(name)).resolve() != tmp_path.resolve()


def test_the_page_escapes_what_runs_say_and_names_its_only_script(tmp_path: Path) -> None:
    assert SPITEFUL in CATEGORIES[2]
    run = RunRecord(
        "r", f"A{SPITEFUL}", 0, "failed", message=SPITEFUL, run_dir=f"/x/{SPITEFUL}", params={"x": SPITEFUL}
    )
    page = render_page(Study(ExperimentData(f"tiny{SPITEFUL}", f"sqlite:////x/{SPITEFUL}.db", (run,))))
    assert page.count("<script") == 1
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert script is not None
    assert policy is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].replace("&#39;", "'").split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert rules["img-src"] == "data:"
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)


def test_every_package_of_ours_is_pinned() -> None:
    pinned = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, equals, version = line.partition("==")
        if equals:
            pinned[canonicalize_name(name)] = version
    needed = _closure("coordexp", {"dev", "server"})
    assert len(needed) > 100
    needed.pop("pip", None)  # the installer itself comes with the environment
    missing = sorted(name for name in needed if name not in pinned)
    assert not missing
    different = {name: (pinned[name], found) for name, found in needed.items() if pinned[name] != found.split("+")[0]}
    assert not different
    for text in importlib.metadata.requires("coordexp") or []:  # an extra need not be installed, but is pinned as well
        assert canonicalize_name(Requirement(text).name) in pinned, text


def _closure(root: str, extras: set[str]) -> dict[str, str]:
    """Return the installed version of everything a distribution needs here, through all its needs."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    todo = [(root, extra) for extra in ("", *extras)]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for text in importlib.metadata.requires(name) or []:
            needed = Requirement(text)
            if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
                continue
            key = canonicalize_name(needed.name)
            try:
                found[key] = importlib.metadata.version(key)
            except importlib.metadata.PackageNotFoundError:
                continue  # of an extra that was not installed
            todo += [(key, one) for one in ("", *needed.extras)]
    return found
