"""A learned score, end to end: trained in a run, used in its evaluation and in a later one; nothing else changes."""

import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import distributed

from coordexp.cli.main import main
from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.bins import decode_array
from coordexp.coord_tokens.grammar.parse import parse_generated
from coordexp.data.sources.coco import read_coco
from coordexp.detection.categories import CategoryIndex
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.matching import Matcher
from coordexp.errors import CheckpointError
from coordexp.evaluate.evaluation import EvaluationSpec
from coordexp.evaluate.job import EvaluationJob, open_evaluation
from coordexp.model import score_head
from coordexp.model.merging.merge import merge
from coordexp.model.score_head import SCORE_HEAD, ScoreHead, fit_score_head
from coordexp.runs.folder import EvaluationFolder, ExperimentFolder, RunFolder
from coordexp.runs.reporter import LocalReporter, read_rows
from coordexp.train.loop import learned_score
from coordexp.train.loop.evaluator import Evaluator
from coordexp.train.loop.learned_score import best_ious, perturbed_answers
from coordexp.train.run import train_run
from coordexp.train.setup.components import build_components
from tests.integration.learned_score_support import assert_scored_alike, objects_of
from tests.integration.ranks_support import environment_of_ranks, leave_group, run_ranks
from tests.integration.training_support import prepared, small_config

pytestmark = pytest.mark.timeout(240)

SCORES = {"logits": {}, "own": {"score": "learned"}, "perturbed": {"score": "learned", "score_boxes": "perturbed"}}


# Of the penalties that a head is chosen from: a fit takes half a second with all of them.
FEW_PENALTIES = (1e-1, 1.0)


@pytest.fixture(scope="module", autouse=True)
def _few_penalties():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(score_head, "_PENALTIES", FEW_PENALTIES)
        yield


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """Three runs of one training, with three scores; the second also has a checkpoint and a subset at step 1."""
    folder = tmp_path_factory.mktemp("learned_score")
    config = small_config("embedded", folder / "runs", max_steps=2, learning_rate=3e-3)
    data = config.data.model_copy(update={"holdout_images": 8})
    configs = {}
    for name, score in SCORES.items():
        update = {"data": data, "experiment": config.experiment.model_copy(update={"group": name})}
        some = {"decoding": ("constrained",), "max_new_tokens": 64, "subset_images": 2}
        some["every_steps"] = 1 if name == "own" else None
        if name == "own":
            update["training"] = config.training.model_copy(update={"checkpoint_steps": 1})
        update["evaluation"] = config.evaluation.model_copy(update=some | score)
        configs[name] = prepared(config.model_copy(update=update))
        reporter = LocalReporter(RunFolder.of(configs[name]).path)
        train_run(configs[name], reporter=reporter, print_line=lambda _: None)
    return configs


def _objects(config):
    return objects_of(RunFolder.of(config).evaluation("final"))


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
    assert len(losses[0]) == 2
    assert losses[0] == losses[1] == losses[2]


def test_the_held_out_images_are_not_trained_on(experiment):
    config = experiment["own"]
    parts = build_components(config)
    held_out, trained = ({one.image_id for one in part} for part in (parts.holdout, parts.train.samples))
    assert (len(held_out), len(trained)) == (8, 16)
    assert not held_out & trained
    assert build_components(experiment["logits"]).train.counts["held_out"] == 8


@pytest.mark.parametrize("name", ["own", "perturbed"])
def test_the_checkpoint_scores_its_boxes_as_the_run_did(name, experiment, tmp_path):
    config = experiment[name]
    data, run = ExperimentFolder.of(config).data, RunFolder.of(config)
    assert ScoreHead.load(run.merged).about["boxes"] == name
    merged, adapter = ["--model", run.merged], ["--adapter", run.checkpoint(2).path]
    answers = ["--generations", run.evaluation("final").decoding("constrained").answers]
    # Generated once more by both, and the run's own answers read in one pass.
    for at, way in enumerate((merged, adapter, [*merged, *answers])):
        command = ["evaluate", *way, "--annotations", data / "instances_val.json", "--images", data / "val"]
        command += ["--score", "learned", "--decoding", "constrained", "--output", tmp_path / str(at)]
        command += ["--batch-size", 6, "--max-new-tokens", 64, "--threads", 1]
        assert main(list(map(str, command))) == 0
        assert_scored_alike(EvaluationFolder(tmp_path / str(at)), run.evaluation("final"))
    # The adapter has it too, and a merge takes it along.
    merge(run.checkpoint(2).path, tmp_path / "merged", ExperimentFolder.of(config).base(config))
    assert (tmp_path / "merged" / SCORE_HEAD).read_bytes() == (run.merged / SCORE_HEAD).read_bytes()


def test_a_run_that_is_resumed_has_the_same_head(experiment, tmp_path):
    """From the checkpoint of the middle, which has none: it is fitted to the model of the end."""
    first = experiment["own"]
    shutil.copytree(first.experiment.runs_dir, tmp_path, dirs_exist_ok=True)
    update = {"experiment": first.experiment.model_copy(update={"runs_dir": tmp_path})}
    config = prepared(first.model_copy(update=update))
    run = RunFolder.of(config)
    assert not (run.checkpoint(1).path / SCORE_HEAD).exists()
    for made_later in (run.merged, run.checkpoint(2).path, run.evaluation("final").path):
        shutil.rmtree(made_later)
    lines = []
    train_run(config, reporter=LocalReporter(run.path), print_line=lines.append)
    assert any("resumes at step 1" in line for line in lines)
    expected = (RunFolder.of(first).merged / SCORE_HEAD).read_bytes()
    assert (run.merged / SCORE_HEAD).read_bytes() == (run.checkpoint(2).path / SCORE_HEAD).read_bytes() == expected
    assert _objects(config) == _objects(first)


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


def test_the_control_is_trained_on_each_perturbed_box_as_it_is_written(experiment, monkeypatch):
    config, seen = experiment["perturbed"], []
    parts = build_components(config)

    def fit(*inputs, boxes):
        seen.append(inputs)
        return fit_score_head(*inputs, boxes=boxes)

    monkeypatch.setattr(learned_score, "fit_score_head", fit)
    evaluator = Evaluator(config, parts)
    evaluator.on_subset(1)
    assert evaluator.score_head.about["boxes"] == "perturbed"
    evaluator.on_subset(2)
    (hidden, scalars, ious, images), again = seen
    assert all(torch.equal(one, other) for one, other in zip(seen[0], again, strict=True))
    objects = sorted((one.image_id, len(one.objects)) for one in parts.holdout)
    assert images.tolist() == [image_id for image_id, count in objects for _ in range(count)]
    assert len(hidden) == len(scalars) == len(ious) == len(images)
    assert ious.min() < 0.4 < 0.9 < ious.max()
    # The boxes judged are those that were written: perturbed truth to a bin, whatever the model expects there.
    answers = perturbed_answers(parts.holdout, parts.encoding)
    sizes, best = [], []
    for sample in sorted(parts.holdout, key=lambda one: one.image_id):
        ids, vocab = answers[sample.image_id].token_ids, parts.encoding.vocab
        spans = parse_generated(ids, vocab).objects
        bins = np.array([[vocab.numbers.bin_of(ids[number]) for number in span.numbers] for span in spans])
        descs = [parts.encoding.tokenizer.decode(ids[span.desc]) for span in spans]
        names = CategoryIndex(parts.val.categories)
        best += best_ious(decode_array(bins), [names.find(desc) for desc in descs], sample, names).tolist()
        sizes += np.log(np.maximum(bins[:, 2:] - bins[:, :2], 12**-0.5)).tolist()
    assert ious.tolist() == best
    np.testing.assert_allclose(scalars[:, 4:6], sizes)


def _run_as_rank(rank: int, store: str, config_json: str) -> None:
    """One of two gloo processes of a run; each keeps its head, and what the fit has seen."""
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    config = ExperimentConfig.model_validate_json(config_json)
    folder, original = RunFolder.of(config).path / f"rank{rank}", learned_score.fit_score_head
    folder.mkdir(parents=True)

    def fit(*inputs, boxes):
        torch.save(inputs, folder / "inputs.pt")
        return original(*inputs, boxes=boxes)

    learned_score.fit_score_head, score_head._PENALTIES = fit, FEW_PENALTIES
    evaluator = Evaluator(config, build_components(config))
    evaluator.on_all_images()
    evaluator.score_head.save(folder)
    leave_group()


@pytest.mark.parametrize("name", ["own", "perturbed"])
def test_two_ranks_fit_one_head_on_the_boxes_of_both(name, experiment, tmp_path, monkeypatch):
    for key, value in environment_of_ranks(2).items():
        monkeypatch.setitem(os.environ, key, value)
    update = {"evaluation": experiment[name].evaluation.model_copy(update={"batch_size": 3})}
    configs = {}
    for group in ("alone", "ranks"):
        update["experiment"] = experiment[name].experiment.model_copy(update={"group": f"{name}-{group}"})
        update["experiment"] = update["experiment"].model_copy(update={"runs_dir": tmp_path / "runs"})
        configs[group] = prepared(experiment[name].model_copy(update=update))
    evaluator = Evaluator(configs["alone"], build_components(configs["alone"]))
    evaluator.on_all_images()
    run_ranks(_run_as_rank, (str(tmp_path / "store"), configs["ranks"].model_dump_json()))
    run = RunFolder.of(configs["ranks"]).path
    heads = [ScoreHead.load(run / f"rank{rank}") for rank in (0, 1)]
    assert torch.equal(heads[0].weight_QF, heads[1].weight_QF)
    assert torch.equal(heads[0].bias_Q, heads[1].bias_Q)
    assert heads[0].about == heads[1].about == evaluator.score_head.about
    assert not (run / "rank1" / "inputs.pt").exists()  # one rank fits
    torch.testing.assert_close(heads[0].weight_QF, evaluator.score_head.weight_QF, rtol=1e-3, atol=1e-5)
    alone, both = (_objects(config) for config in configs.values())
    assert sum(map(len, alone.values())) > 4
    assert both.keys() == alone.keys()
    for image_id, objects in alone.items():
        scores = [item.score for item in objects]
        assert [item.score for item in both[image_id]] == pytest.approx(scores, abs=1e-4)
    (_, _, _, images) = torch.load(run / "rank0" / "inputs.pt")
    assert len(images.unique()) == int(evaluator.score_head.about["images"]) > 5  # of 8, three a batch: of both ranks
