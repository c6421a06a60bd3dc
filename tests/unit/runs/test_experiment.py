import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from coordexp.campaign.preparation import needed_disk_bytes
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ConfigError, ResourceError
from coordexp.runs.experiment import check_disk, check_experiment, open_experiment
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.lock import LockHolder, experiment_lock, last_holder
from coordexp.runs.plan import plan_runs
from coordexp.runs.status import RunStatus, write_status

GEOMETRY = {"objective": {"use_coordexp_loss": True, "use_geom_loss": True}}


def make_config(runs_dir: Path, *, groups=None, seeds=(0,), **sections: dict[str, object]) -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {
            "experiment": {"name": "tiny", "runs_dir": str(runs_dir)},
            "ablation": {"groups": groups or {"A": {}, "C": GEOMETRY}, "seeds": list(seeds)},
            **sections,
        }
    )


def begin_a_run(config: ExperimentConfig) -> None:
    write_status(plan_runs(config)[0].run_dir, RunStatus(state="running"))


def test_the_same_configuration_goes_on(tmp_path):
    first = open_experiment(make_config(tmp_path))
    begin_a_run(make_config(tmp_path))
    assert open_experiment(make_config(tmp_path)) == first
    assert json.loads((tmp_path / "tiny" / "experiment.json").read_text()) == vars(first)


def test_a_changed_key_is_refused_and_shown(tmp_path):
    open_experiment(make_config(tmp_path, training={"max_steps": 400}))
    begin_a_run(make_config(tmp_path))
    before = (tmp_path / "tiny" / "experiment.json").read_bytes()
    with pytest.raises(ConfigError, match=r"training\.max_steps: 400 -> 20.*experiment\.name.*--fresh"):
        open_experiment(make_config(tmp_path, training={"max_steps": 20}))
    assert (tmp_path / "tiny" / "experiment.json").read_bytes() == before


def test_fewer_workers_go_on_where_a_step_keeps_its_images_and_the_refusal_says_how(tmp_path):
    first = open_experiment(make_config(tmp_path, cluster={"num_workers": 4}))
    begin_a_run(make_config(tmp_path))
    with pytest.raises(ConfigError, match=r"global_batch_size: 32 -> 16\).*gradient_accumulation_steps=2 .*32 images"):
        open_experiment(make_config(tmp_path, cluster={"num_workers": 2}))
    fewer = {"cluster": {"num_workers": 2}, "training": {"gradient_accumulation_steps": 2}}
    assert open_experiment(make_config(tmp_path, **fewer)) == first
    # DeepSpeed's optimizer lies in as many shards as there were workers.
    sharded = [{**fewer, "cluster": {"num_workers": n, "strategy": "zero2"}} for n in (4, 2)]
    open_experiment(make_config(tmp_path, **sharded[0]), fresh=True)
    begin_a_run(make_config(tmp_path))
    same_step = {**sharded[1], "training": {"gradient_accumulation_steps": 4}}
    with pytest.raises(ConfigError, match=r"cluster\.num_workers: 4 -> 2\).*cluster\.num_workers=4 .*continues"):
        open_experiment(make_config(tmp_path, **same_step))


@pytest.mark.parametrize(
    ("began", "now"),
    [
        ({"num_workers": 1}, {"num_workers": 2, "strategy": "zero2"}),
        ({"num_workers": 2}, {"num_workers": 2, "strategy": "zero2"}),
        ({"num_workers": 2, "strategy": "zero2"}, {"num_workers": 2}),
        ({"num_workers": 4, "strategy": "zero2"}, {"num_workers": 1}),
        ({"num_workers": 4, "strategy": "zero2"}, {"num_workers": 2, "strategy": "zero2"}),
    ],
)
def test_what_a_refused_resume_names_as_the_way_back_continues(tmp_path, began, now):
    """The strategy or the workers of its shards are the reason; accumulation alone would be refused again."""
    training = {"gradient_accumulation_steps": 4}
    first = open_experiment(make_config(tmp_path, cluster=began, training=training))
    begin_a_run(make_config(tmp_path))
    with pytest.raises(ConfigError) as refused:
        open_experiment(make_config(tmp_path, cluster=now, training=training))
    named_settings = re.findall(r"(\w+)\.(\w+)=(\w+)", str(refused.value))
    assert named_settings
    sections = {"cluster": dict(now), "training": dict(training)}
    for section, key, value in named_settings:
        sections[section][key] = int(value) if value.isdigit() else value
    assert ("cluster", "strategy", "ddp") in named_settings or began.get("strategy") == "zero2"
    assert open_experiment(make_config(tmp_path, **sections)) == first


def test_no_way_back_is_promised_where_more_has_changed(tmp_path):
    open_experiment(make_config(tmp_path, cluster={"num_workers": 1}))
    begin_a_run(make_config(tmp_path))
    changed = {"cluster": {"num_workers": 2, "strategy": "zero2"}, "training": {"max_steps": 7}}
    with pytest.raises(ConfigError) as refused:
        open_experiment(make_config(tmp_path, **changed))
    assert "continues" not in str(refused.value)
    assert 'cluster.strategy: "ddp" -> "zero2"' in str(refused.value)


def test_before_any_run_has_begun_a_configuration_may_be_mended(tmp_path):
    first = open_experiment(make_config(tmp_path, training={"max_steps": 400}))
    second = open_experiment(make_config(tmp_path, training={"max_steps": 20}))
    assert second.instance != first.instance


def test_groups_and_seeds_may_join(tmp_path):
    first = open_experiment(make_config(tmp_path, groups={"A": {}}, seeds=[0]))
    begin_a_run(make_config(tmp_path))
    second = open_experiment(make_config(tmp_path, seeds=[2], cluster={"executor": "inline"}))
    assert second.instance == first.instance
    assert list(second.groups) == ["A", "C"]
    assert second.seeds == [0, 2]


def test_a_group_of_the_same_name_with_other_keys_is_refused(tmp_path):
    open_experiment(make_config(tmp_path))
    begin_a_run(make_config(tmp_path))
    changed = {"C": {"objective": GEOMETRY["objective"] | {"alpha_l1": 2.0}}}
    with pytest.raises(ConfigError, match=r"ablation\.groups\.C\.objective\.alpha_l1: \(absent\) -> 2\.0"):
        check_experiment(make_config(tmp_path, groups=changed))


def test_fresh_moves_aside_and_never_deletes(tmp_path):
    first = open_experiment(make_config(tmp_path))
    for number in (1, 2):
        (tmp_path / "tiny" / "note").write_text(str(number))
        second = open_experiment(make_config(tmp_path, training={"max_steps": 20}), fresh=True)
        assert (tmp_path / f"tiny.old-{number}" / "note").read_text() == str(number)
    assert second.instance != first.instance
    assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["experiment.json"]


def test_a_second_ablation_of_the_same_name_is_refused(tmp_path):
    config = make_config(tmp_path)
    other = make_config(tmp_path).model_copy(
        update={"experiment": config.experiment.model_copy(update={"name": "other"})}
    )
    with (
        experiment_lock(config),
        experiment_lock(other),
        pytest.raises(ResourceError, match=rf"experiment tiny .*process {os.getpid()} on"),
        experiment_lock(config),
    ):
        pass
    with experiment_lock(config):
        pass


def test_a_killed_process_leaves_no_lock(tmp_path):
    script = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from coordexp.config.schema import Experiment, ExperimentConfig\n"
        "from coordexp.runs.lock import experiment_lock\n"
        f"config = ExperimentConfig(experiment=Experiment(name='tiny', runs_dir=Path({str(tmp_path)!r})))\n"
        "with experiment_lock(config):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert ended.returncode == -9
    holder = last_holder(ExperimentFolder(tmp_path / "tiny"))
    assert holder is not None
    assert holder.has_ended()
    assert not LockHolder(os.getpid(), holder.host).has_ended()
    assert not LockHolder(holder.process, "elsewhere").has_ended()
    with experiment_lock(make_config(tmp_path)):
        pass


@pytest.mark.parametrize(
    ("sections", "expected_gib"),
    [
        # Two runs; each a merged model, and three checkpoints: of adapters a fifth of the base, of all weights six.
        ({}, 2 * (10 + 3 * 2) + 0.25),
        ({"training": {"keep_checkpoints": 1}}, 2 * (10 + 2 * 2) + 0.25),
        ({"tracking": {"max_artifact_mib": 20_000}}, 2 * (20 + 3 * 2) + 0.25),  # MLflow keeps a copy
        ({"training": {"tuning": "full"}, "custom": {"coord_offset": {"enabled": False}}}, 2 * (10 + 3 * 60) + 0.25),
    ],
)
def test_what_runs_write_by_hand(tmp_path, sections, expected_gib):
    plans = plan_runs(make_config(tmp_path, **sections))
    assert len(plans) == 2
    assert needed_disk_bytes(plans, 10 * 2**30) == expected_gib * 2**30


def test_a_full_disk_is_found_before_training(tmp_path):
    check_disk(tmp_path / "not" / "there", needed_bytes=1)
    with pytest.raises(ResourceError, match=r"1048576\.00 GiB"):
        check_disk(tmp_path / "not" / "there", needed_bytes=2**50)
