"""The lines a run prints: every lost box is in a count, and every bad record has its place."""

from dataclasses import replace

from coordexp.config.schema import ExperimentConfig
from coordexp.data.dataset import DetectionDataset
from coordexp.data.sampler import LengthBucketSampler
from coordexp.data.sources.coco.source import CocoSource
from coordexp.train.loop.messages import batch_lines, data_lines, is_warning, sum_lines, term_table
from coordexp.train.setup.weighted_terms import build_criterion


def test_a_run_says_how_an_epoch_ends():
    training = {"per_device_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 5}
    config = ExperimentConfig.model_validate({"training": training, "cluster": {"num_workers": 2}})
    sampler = LengthBucketSampler([3] * 9, batch_size=8, seed=0, multiple_of=4)
    an_epoch, the_run, fillers = batch_lines(config, sampler, num_ranks=2)
    for fact in ("100.0%", "2 steps of 8", "last one of 1"):
        assert fact in an_epoch
    assert "5 steps, 2.5 epochs" in the_run
    for fact in ("3 fillers", "2 workers"):
        assert fact in fillers


def test_clean_data_take_one_line_and_doubtful_data_one_more(coco):
    data = CocoSource(coco.annotations, coco.images).read()
    (counts,) = data_lines("train", data)
    assert [entry.split()[0] for entry in counts.removeprefix("train: ").split("; ")] == ["2", "2", "1"]
    assert "without objects" in counts
    _, doubt = data_lines("train", replace(data, warnings=("odd",)))
    assert is_warning(doubt)
    assert doubt.endswith("odd")
    assert not is_warning(counts)


def test_what_is_lost_is_counted(coco, native, prompt, image_spec):
    coco.document["annotations"] += [
        {"id": i, "image_id": 7, "category_id": 1, "bbox": [200, 1, 9, 1], "iscrowd": 0} for i in range(3, 10)
    ]
    coco.document["annotations"].append({"id": 99, "image_id": 3, "category_id": 1, "bbox": [0, 0, 9, 9], "iscrowd": 1})
    data = CocoSource(coco.save().annotations, coco.images).read(max_bad_fraction=0.7)
    dataset = DetectionDataset(
        samples=data.samples, tokenizer=native[0], vocab=native[1], prompt=prompt, image_spec=image_spec,
        max_objects=1, max_length=4096, seed=0,
    )  # fmt: skip
    counts, head, *records, more = data_lines("train", data, dataset)
    for fact in ("2 images", "2 boxes", "1 crowd boxes", "1 objects over data.max_objects"):
        assert fact in counts
    assert "7 records" in head
    assert len(records) == 5
    for number, record in enumerate(records):
        assert f"{coco.annotations}: annotations[{2 + number}] (id {3 + number})" in record
    assert "[200.0, 1.0, 9.0, 1.0]" in records[0]
    assert "2 more" in more


def test_a_mean_is_said_as_the_sum_of_the_specification(coco, native, prompt, image_spec):
    dataset = DetectionDataset(
        samples=CocoSource(coco.annotations, coco.images).read().samples, tokenizer=native[0], vocab=native[1],
        prompt=prompt, image_spec=image_spec, max_objects=30, max_length=4096, seed=0,
    )  # fmt: skip
    samples = [dataset[index] for index in range(len(dataset))]
    tokens = sum(len(sample.target_ids) for sample in samples)
    assert sum(len(sample.boxes_norm_xyxy) for sample in samples) == 2
    boxes = {"use_coordexp_loss": True, "use_geom_loss": True, "lambda_coord": 0.5}
    (line,) = sum_lines(ExperimentConfig.model_validate({"objective": boxes}), dataset)
    assert "objective.lambda_coord 0.5 " in line
    assert f"lambda_spec {0.5 * tokens / 2:.3g} " in line
    assert sum_lines(ExperimentConfig(), dataset) == []


def test_the_terms_that_are_on_have_weight_and_unit():
    geometry = {"use_coordexp_loss": True, "use_geom_loss": True, "alpha_l1": 0.5}
    config = ExperimentConfig.model_validate({"objective": geometry | {"extra": {"smooth_l1": 0, "text_gate": 2}}})
    assert [line.split() for line in term_table(build_criterion(config))] == [
        ["loss", "term", "weight", "divided", "by", "the", "number", "of"],
        ["text_ce", "1", "tokens"],
        ["coord_ce", "1", "tokens"],
        ["box_l1", "0.5", "boxes"],
        ["box_giou", "1", "boxes"],
        ["text_gate", "2", "text", "tokens"],
    ]
    gate = {"enabled": True, "soft_ce_weight": 0.0, "w1_weight": 0.0}
    alone = build_criterion(ExperimentConfig.model_validate({"custom": {"coord_soft_ce_w1": gate}}))
    _, *terms, remark = term_table(alone)
    assert [line.split()[0] for line in terms] == ["text_ce", "gate"]
    assert "gate" in remark
