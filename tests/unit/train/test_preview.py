"""What a person is shown is what is trained."""

import numpy as np
import pytest

from coordexp.cli.views import STYLES
from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.bins import quantise_boxes
from coordexp.data.sources.door import load_split
from coordexp.runs.folder import ExperimentFolder
from coordexp.train.preview import previews as previews_of_set
from coordexp.train.setup.door import open_set_of
from tests.support.samples import pairs_of


def _config(runs_dir, **data):
    shapes = {"num_train": 12, "num_val": 4}
    return ExperimentConfig.model_validate(
        {
            "experiment": {"name": "seen", "runs_dir": str(runs_dir)},
            "data": {"shapes": shapes, **data},
            "training": {"per_device_batch_size": 4},
        }
    )


def previews(config, **options):
    """What is shown of an experiment whose set is there."""
    open_set_of(config)
    return previews_of_set(config, **options)


@pytest.mark.parametrize("structure", ["native", "spec"])
def test_only_the_answer_is_supervised_and_every_token_has_its_role(tmp_path, structure):
    shown = list(previews(_config(tmp_path, structure=structure), num=3))
    assert len(shown) == 3
    for preview in shown:
        labels = "".join(span.text for span in preview.spans if span.supervised)
        prompt = "".join(span.text for span in preview.spans if not span.supervised)
        assert prompt.endswith("<|im_start|>assistant\n")
        assert labels.endswith("<|im_end|>")
        assert "coord_" not in prompt
        by_role = {role: [span.text for span in preview.spans if span.role == role] for role in STYLES}
        assert by_role["description"] == [desc for desc, _ in _ordered(preview.sample)]
        assert all(text.count("<|coord_") == 4 for text in by_role["coord"])
        assert not any(span.supervised for span in preview.spans if span.role in ("prompt", "image"))


def test_the_text_arm_tells_digits_of_a_box_from_those_of_a_description(tmp_path):
    config = _config(tmp_path)
    tokens = config.custom.coord_tokens.model_copy(update={"enabled": False})
    config = config.model_copy(update={"custom": config.custom.model_copy(update={"coord_tokens": tokens})})
    shown = list(previews(config, num=3))
    assert len(shown) == 3
    assert any(preview.objects for preview in shown)
    for preview in shown:
        coords = [span.text for span in preview.spans if span.role == "coord"]
        pairs = _ordered(preview.sample)
        assert coords == [f"{k:03d}" for _, box in pairs for k in quantise_boxes([box])[0].tolist()]
        assert [span.text for span in preview.spans if span.role == "description"] == [desc for desc, _ in pairs]
        assert [desc for desc, _ in preview.objects] == [desc for desc, _ in pairs]
        for (_, box_px), (_, box_norm) in zip(preview.objects, pairs, strict=True):
            sides = [preview.sample.width, preview.sample.height] * 2
            bins = quantise_boxes([box_norm])[0]
            assert box_px == pytest.approx([k / 1000 * side for k, side in zip(bins, sides, strict=True)])


def _ordered(sample):
    return sorted(pairs_of(sample.objects), key=lambda pair: (pair[1][1], pair[1][0]))


def test_boxes_come_from_the_tokens_and_fit_the_annotation(tmp_path):
    config = _config(tmp_path)
    shown = list(previews(config, num=12))
    assert len(shown) == 12
    assert sum(len(preview.objects) for preview in shown) >= 12
    for preview in shown:
        sample = preview.sample
        scale = np.array([sample.width, sample.height] * 2)
        for (desc, box_px), (annotated_desc, box_norm) in zip(preview.objects, _ordered(sample), strict=True):
            assert desc == annotated_desc
            # Half a bin, and a coordinate of 1.0 is clamped to bin 999.
            assert np.abs(np.array(box_px) - np.array(box_norm) * scale).max() <= 0.001 * scale.max() + 1e-6


def test_training_samples_come_in_their_order_and_validation_in_the_files(tmp_path):
    config = _config(tmp_path)
    seen = [preview.sample.image_id for preview in previews(config, num=12)]
    data_dir = ExperimentFolder.of(config).data
    in_file = [sample.image_id for sample in load_split(config.data, "train", data_dir=data_dir).samples]
    assert len(seen) == 12
    assert sorted(seen) == sorted(in_file)
    assert seen != in_file
    val = [preview.sample.image_id for preview in previews(config, num=2, split="val")]
    assert val == [sample.image_id for sample in load_split(config.data, "val", data_dir=data_dir).samples[:2]]
