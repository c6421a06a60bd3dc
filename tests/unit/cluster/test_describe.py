"""What a dry run says of the power of a plan."""

import json

import pytest

from coordexp.cluster.describe import summary
from coordexp.cluster.plan import plan_runs
from coordexp.config.schema import ExperimentConfig
from coordexp.statistics.power import planned_detectable


def lines(runs_dir, *, seeds=(0,), **data):
    sections = {"experiment": {"name": "x", "runs_dir": str(runs_dir)}, "ablation": {"seeds": seeds}}
    config = ExperimentConfig.model_validate(sections | ({"data": data} if data else {}))
    return {line[:16].strip(): line[16:] for line in summary(config, plan_runs(config))}


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_the_smallest_difference_is_that_of_images_and_seeds(tmp_path, seeds):
    said = lines(tmp_path, seeds=seeds, shapes={"num_val": 250})["can detect"]
    assert f"roughly {planned_detectable(250, len(seeds)):.3f} on (80 % power, 5 % level; 250 validation" in said
    assert ("these checkpoints, not their losses" in said) == (len(seeds) == 1)


def test_the_images_of_a_file_are_counted(tmp_path):
    path = tmp_path / "val.json"
    images = [{"id": i, "width": 10, "height": 10, "file_name": f"{i}.jpg"} for i in range(7)]
    path.write_text(json.dumps({"images": images, "annotations": [], "categories": [{"id": 1, "name": "a"}]}))
    paths = dict.fromkeys(("train_annotations", "train_images", "val_annotations", "val_images"), str(path))
    assert "; 7 validation images" in lines(tmp_path, format="coco", **paths)["can detect"]
    path.unlink()
    assert lines(tmp_path, format="coco", **paths)["can detect"] == f"unknown, since {path} cannot be read"
