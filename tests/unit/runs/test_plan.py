from pathlib import Path

import pytest

from coordexp.config.schema import ExperimentConfig
from coordexp.runs.plan import RunPlan, plan_runs

B = {"objective": {"use_coord_ce": False, "use_coordexp_loss": True, "use_geom_loss": True}}


def make_config(runs_dir: Path, **sections: dict[str, object]) -> ExperimentConfig:
    tree: dict[str, object] = {
        "experiment": {"name": "tiny", "runs_dir": str(runs_dir)},
        "ablation": {"groups": {"A": {}, "B": B}, "seeds": [0, 1]},
    }
    return ExperimentConfig.model_validate(tree | sections)


def test_whole_seeds_come_first(tmp_path):
    plans = plan_runs(make_config(tmp_path))
    assert [plan.name for plan in plans] == ["A-s0", "B-s0", "A-s1", "B-s1"]
    assert [plan.run_dir for plan in plans] == [tmp_path / "tiny" / name for name in ("A-s0", "B-s0", "A-s1", "B-s1")]
    assert plans[1].config.objective.use_geom_loss
    assert not plans[0].config.objective.use_geom_loss


def test_without_groups_the_configuration_is_the_one_run(tmp_path):
    config = make_config(tmp_path, ablation={"seeds": [4]})
    assert [plan.name for plan in plan_runs(config)] == ["A-s4"]


@pytest.mark.parametrize(
    ("sections", "same"),
    [
        ({"tracking": {"max_artifact_mib": 1}}, True),
        ({"cluster": {"executor": "inline", "max_failures": 5}}, True),
        ({"ablation": {"groups": {"A": {}}, "seeds": [0]}}, True),
        ({"data": {"num_workers": 3, "image_cache_mib": 64}}, True),
        ({"training": {"max_steps": 7}}, False),
        ({"cluster": {"num_workers": 2}}, False),
    ],
)
def test_a_key_changes_with_what_the_result_depends_on(tmp_path, sections, same):
    before = [plan.key for plan in plan_runs(make_config(tmp_path))]
    assert before[1].startswith("tiny/B/s0/")
    assert len(set(before)) == 4
    assert (plan_runs(make_config(tmp_path, **sections))[0].key == before[0]) is same
    assert plan_runs(make_config(tmp_path), instance="a")[0].key != before[0]  # another life of the name


def test_a_plan_travels_whole(tmp_path):
    plan = plan_runs(make_config(tmp_path))[1]
    assert RunPlan.from_json(plan.to_json()) == plan


def test_the_global_batch_counts_microbatches_and_workers(tmp_path):
    config = make_config(
        tmp_path, training={"per_device_batch_size": 3, "gradient_accumulation_steps": 5}, cluster={"num_workers": 7}
    )
    assert config.global_batch_size == 105
