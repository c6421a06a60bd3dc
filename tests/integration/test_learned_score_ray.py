"""A learned score under Ray: trained by two workers of one run, and read by two workers of an evaluation."""

from pathlib import Path

import pytest
import torch

from coordexp.cluster.evaluate import Workers, evaluate_on_ray
from coordexp.cluster.executor import RayExecutor
from coordexp.cluster.session import ray_session
from coordexp.config.schema import ExperimentConfig
from coordexp.evaluate.evaluation import EvaluationSpec
from coordexp.evaluate.job import EvaluationJob, open_evaluation
from coordexp.model.score_head import SCORE_HEAD, ScoreHead
from coordexp.runs.folder import EvaluationFolder, ExperimentFolder, RunFolder
from coordexp.runs.plan import plan_runs
from coordexp.train import train
from tests.integration.learned_score_support import assert_scored_alike
from tests.integration.ray_support import private_ray_environment
from tests.integration.training_support import prepared, small_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def make_config(runs_dir: Path) -> ExperimentConfig:
    """Six steps on sixteen images, eight held out; batches of three, so that each worker reads some of them."""
    small = small_config("embedded", runs_dir, max_steps=6, checkpoint_steps=6, per_device_batch_size=8)
    tree = small.model_dump(mode="json")
    tree["training"]["learning_rate"] = 3e-3
    tree["data"]["holdout_images"] = 8
    tree["evaluation"] |= {"score": "learned", "decoding": ["constrained"], "batch_size": 3, "max_new_tokens": 64}
    tree["cluster"] |= {"num_workers": 2, "max_failures": 0}
    return prepared(ExperimentConfig.model_validate(tree))


def test_two_workers_train_one_head_and_two_others_read_it(tmp_path):
    config = make_config(tmp_path / "runs")
    run, data = RunFolder.of(config), ExperimentFolder.of(config).data
    (plan,) = plan_runs(config)
    plan.run_dir.mkdir(parents=True, exist_ok=True)
    with private_ray_environment(), ray_session(threads=1) as ready:
        ready.result()
        RayExecutor().execute([plan], train)
        assert plan.is_finished(), plan.status()
        head = ScoreHead.load(run.merged)
        assert head.about["boxes"] == "own"
        assert int(head.about["images"]) > 5  # of eight: the boxes of both workers
        assert torch.isfinite(head.weight_QF).all()
        assert (run.checkpoint(6).path / SCORE_HEAD).read_bytes() == (run.merged / SCORE_HEAD).read_bytes()

        # Three images a batch, two batches: in the run each worker scored one of them, with its own copy of the head.
        spec = EvaluationSpec(batch_size=3, max_new_tokens=64, decoding=("constrained",), score="learned")
        job = EvaluationJob(str(run.merged), data / "instances_val.json", data / "val", spec=spec)
        output = tmp_path / "out"
        evaluate_on_ray(job, open_evaluation(job), Workers(2), output=output, on_images=lambda number: None)
    assert_scored_alike(EvaluationFolder(output), run.evaluation("final"))
