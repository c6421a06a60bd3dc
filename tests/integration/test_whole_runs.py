"""What a whole run says, measures and does once: with all weights trained, and with a stop in between."""

import json
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from coordexp.model.loading import load
from coordexp.runs.folder import RunFolder
from coordexp.runs.reporter import read_rows
from coordexp.runs.status import Begun, Killed, Started, read_status, tell, write_status
from coordexp.train.loop import evaluator
from tests.support.training import prepared, small_config, train_here, with_changes

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def whole(base, tmp_path_factory):
    config = small_config(base, tmp_path_factory.mktemp("runs"), group="A", max_steps=2, checkpoint_steps=1)
    full = {"tuning": "full", "optimizer": "multimodal"}
    return prepared(with_changes(config, training=full, custom={"coord_offset": {"enabled": False}}))


def test_a_run_that_trains_all_weights_writes_them_and_merges_nothing(whole, capfd):
    lines = train_here(whole)
    assert not [line for line in lines if "adapter" in line or "merge" in line or "rounding" in line]
    assert any("writes its weights as a checkpoint" in line for line in lines)
    assert any("bit for bit" in line for line in lines)
    assert "Writing model shards" not in "".join(capfd.readouterr())
    folder = RunFolder.of(whole)
    assert load(folder.merged).vocab is not None
    report = json.loads((folder.merged / "merge_report.json").read_text())
    assert report["is_whole"]
    assert not any(name.startswith("final/merge") for row in read_rows(folder.metrics) for name in row.metrics)


def test_a_resumed_run_reports_the_time_of_all_its_tries(base, tmp_path):
    config = prepared(small_config(base, tmp_path))
    folder = RunFolder.of(config)
    folder.path.mkdir(parents=True, exist_ok=True)
    tell(folder.path, Begun())
    tell(folder.path, Started(0, 0))
    train_here(config, stop=2)
    stopped = tell(folder.path, Killed())
    write_status(folder.path, replace(stopped, seconds=5000.0))  # as if it had taken that long
    tell(folder.path, Begun())
    rows = len(read_rows(folder.metrics))
    tell(folder.path, Started(2, rows))
    began = time.time()
    train_here(config)
    (seconds,) = [row.metrics["final/seconds"] for row in read_rows(folder.metrics) if "final/seconds" in row.metrics]
    assert 5000 < seconds < 5000 + time.time() - began + 1
    assert read_status(folder.path).seconds_until(time.time()) == pytest.approx(seconds, abs=5)


def test_the_images_of_evaluations_are_chosen_once(base, tmp_path, monkeypatch):
    chosen = []

    def counted(samples, n):
        chosen.append(n)
        return subset(samples, n)

    subset = evaluator.stratified_subset
    monkeypatch.setattr(evaluator, "stratified_subset", counted)
    config = small_config(base, tmp_path, max_steps=3, checkpoint_steps=1)
    train_here(prepared(with_changes(config, evaluation={"every_steps": 1, "subset_images": 3, "loss_images": 4})))
    assert sorted(chosen) == [3, 4]


def test_the_card_of_a_run_says_what_the_run_is(whole, base):
    folder = RunFolder.of(whole)
    if not folder.merged.is_dir():
        train_here(whole)
    card = (folder.merged / "README.md").read_text()
    assert "# small, group A, seed 0" in card
    assert f"| base | `{base}` |" in card
    assert "24 pictures" in card
    assert "6 pictures" in card
    assert "most likely bin" in card  # group A's reading
    measured: dict[str, float] = {}
    for row in read_rows(folder.metrics):
        measured |= row.metrics
    for decoding in ("constrained", "free"):
        assert f"| COCO AP, {decoding} decoding | AP {measured[f'{decoding}/argmax/AP']:.3f}, " in card
    assert "bit for bit" in card
    assert "vllm serve ." in card


def test_a_card_loads_what_it_lies_beside(whole, monkeypatch):
    folder = RunFolder.of(whole)
    if not folder.merged.is_dir():
        train_here(whole)
    program = (folder.merged / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(folder.merged)
    names = {}
    exec(program, names)
    stored = load_file(folder.merged / "model.safetensors")
    state = names["model"].state_dict()
    assert len(stored) > 10
    assert all(torch.equal(state[name], tensor) for name, tensor in stored.items())
