"""A learned score, end to end: trained in a run, used in its evaluation and in a later one; nothing else changes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from coordexp.data.sources.coco import read_coco
from coordexp.detection.categories import CategoryIndex
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.matching import Matcher
from coordexp.errors import CheckpointError
from coordexp.evaluate.evaluation import EvaluationSpec
from coordexp.evaluate.job import EvaluationJob, open_decoder, open_evaluation
from coordexp.evaluate.objects import read_objects
from coordexp.model.merge.merge import merge
from coordexp.model.score_head import SCORE_HEAD, ScoreHead
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.runs.reporter import LocalReporter, read_rows
from coordexp.train.loop.learned_score import _perturbed_boxes, best_ious
from coordexp.train.run import train_run
from coordexp.train.setup.components import build_components
from tests.integration.training_support import prepared, small_config

pytestmark = pytest.mark.timeout(240)

SCORES = {"logits": {}, "own": {"score": "learned"}, "perturbed": {"score": "learned", "score_boxes": "perturbed"}}


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """Three runs of one training, with three scores."""
    folder = tmp_path_factory.mktemp("learned_score")
    steps = {"max_steps": 6, "checkpoint_steps": 6, "learning_rate": 3e-3, "per_device_batch_size": 16}
    config = small_config("embedded", folder / "runs", **steps)
    data = config.data.model_copy(update={"holdout_images": 8})
    configs = {}
    for name, score in SCORES.items():
        update = {"data": data, "experiment": config.experiment.model_copy(update={"group": name})}
        some = {"decoding": ("constrained",), "max_new_tokens": 64, "subset_images": 2}
        some["every_steps"] = 3 if name == "own" else None
        update["evaluation"] = config.evaluation.model_copy(update=some | score)
        configs[name] = prepared(config.model_copy(update=update))
        reporter = LocalReporter(RunFolder.of(configs[name]).path)
        train_run(configs[name], reporter=reporter, print_line=lambda _: None)
    return configs


def _objects(config):
    lines = read_objects(RunFolder.of(config).evaluation("final").decoding("constrained").objects)
    return {line.image_id: line.objects for line in lines}


def test_it_changes_the_scores_and_nothing_else(experiment):
    plain, own, perturbed = (_objects(config) for config in experiment.values())
    assert sum(map(len, plain.values())) > 4
    for other in (own, perturbed):
        for image_id, objects in plain.items():
            assert [replace(item, score=0) for item in other[image_id]] == [replace(item, score=0) for item in objects]
    scores = [[item.score for objects in each.values() for item in objects] for each in (plain, own, perturbed)]
    assert scores[0] != scores[1] != scores[2] != scores[0]
    weights = [load_file(RunFolder.of(config).merged / "model.safetensors") for config in experiment.values()]
    assert all(torch.equal(weights[0][name], other[name]) for other in weights[1:] for name in weights[0])
    rows = [read_rows(RunFolder.of(config).metrics) for config in experiment.values()]
    losses = [[row.metrics["train_total_loss"] for row in each if "train_total_loss" in row.metrics] for each in rows]
    assert len(losses[0]) == 6
    assert losses[0] == losses[1] == losses[2]


def test_the_held_out_images_are_not_trained_on(experiment):
    config = experiment["own"]
    parts = build_components(config)
    held_out, trained = ({one.image_id for one in part} for part in (parts.holdout, parts.train.samples))
    assert (len(held_out), len(trained)) == (8, 16)
    assert not held_out & trained
    assert build_components(experiment["logits"]).train.counts["held_out"] == 8


@pytest.mark.parametrize("name", ["own", "perturbed"])
def test_the_merged_checkpoint_scores_its_boxes_as_the_run_did(name, experiment, tmp_path):
    config = experiment[name]
    data, run = ExperimentFolder.of(config).data, RunFolder.of(config)
    assert ScoreHead.load(run.merged).about["boxes"] == name
    spec = EvaluationSpec(batch_size=6, max_new_tokens=64, decoding=("constrained",), score="learned")
    job = EvaluationJob(str(run.merged), data / "instances_val.json", data / "val", spec=spec, num_threads=1)
    answers = run.evaluation("final").decoding("constrained").answers
    read_again = replace(job, spec=replace(spec, reads_answers=True), generations=answers)
    for way in (job, read_again):  # generated once more, and read in one pass
        decoder = open_decoder(way, open_evaluation(way))
        found = {record.image_id: record.objects for record in decoder.decode("constrained", decoder.batches)}
        for image_id, objects in _objects(config).items():
            assert [item.bins for item in found[image_id]] == [item.bins for item in objects]
            scores = [item.score for item in objects]
            assert [item.score for item in found[image_id]] == pytest.approx(scores, abs=1e-3)
    # The adapter has it too, and a merge takes it along.
    merge(run.checkpoint(6).path, tmp_path / "merged", ExperimentFolder.of(config).base(config))
    assert (tmp_path / "merged" / SCORE_HEAD).read_bytes() == (run.merged / SCORE_HEAD).read_bytes()


def test_a_checkpoint_without_one_is_refused_before_a_model_is_loaded(experiment):
    config = experiment["logits"]
    data = ExperimentFolder.of(config).data
    merged, spec = str(RunFolder.of(config).merged), EvaluationSpec(score="learned")
    job = EvaluationJob(merged, data / "instances_val.json", data / "val", spec=spec)
    with pytest.raises(CheckpointError, match=r"merged/score_head\.safetensors: file not found; a learned score is"):
        open_evaluation(job)


def test_labels_are_what_the_oracle_scores_boxes_with(experiment):
    config = experiment["own"]
    data = ExperimentFolder.of(config).data
    truth = read_ground_truth(data / "instances_val.json")
    detections = read_detections(
        RunFolder.of(config).evaluation("final").decoding("constrained").detections("expected"), truth
    )
    samples = {one.image_id: one for one in read_coco(data / "instances_val.json", data / "val").samples}
    names, found = CategoryIndex(truth.categories), []
    for image_id, objects in _objects(config).items():
        known = [item for item in objects if item.category_id is not None]
        boxes = np.array([item.expected for item in known], np.float64).reshape(-1, 4)
        found += best_ious(boxes, [item.category_id for item in known], samples[image_id], names).tolist()
    oracle = Matcher(truth, detections).best_iou()
    assert len(found) == len(oracle) > 4
    # In the oracle's file pixels have decimals.
    np.testing.assert_allclose(sorted(found), sorted(oracle), atol=1e-3)


def test_the_control_reads_behind_each_perturbed_box(experiment, monkeypatch):
    """With true tokens in the place of hidden states, it must find the one that closes the object."""
    config = experiment["perturbed"]
    parts = build_components(config)
    forward = type(parts.forward_terms)
    original = forward.with_hidden
    monkeypatch.setattr(
        forward, "with_hidden", lambda self, model, batch: (original(self, model, batch)[0], batch.targets.unsqueeze(1))
    )
    names = CategoryIndex(parts.val.categories)
    images = _perturbed_boxes(config, parts, names)
    assert {int(token) for image in images for token in image.hidden_MD} == {parts.encoding.vocab.obj_end_id}
    assert len(images) == 8
    assert sum(len(image.ious_M) for image in images) == sum(len(one.objects) for one in parts.holdout)
    ious = np.concatenate([image.ious_M for image in images])
    assert ious.min() < 0.4 < 0.9 < ious.max()
    again = _perturbed_boxes(config, parts, names)
    assert all(np.array_equal(a.ious_M, b.ious_M) for a, b in zip(images, again, strict=True))
