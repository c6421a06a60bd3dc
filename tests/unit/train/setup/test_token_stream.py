"""The hash of a run's first batches: equal where runs read alike, and a check of what training reads last."""

from dataclasses import replace

import pytest

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import DataError
from coordexp.model.tiny.parts import build_model, build_tokenizer, save_base
from coordexp.train.setup.prepare import prepare_experiment, token_stream_hash
from tests.support.samples import things


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """A configuration and its prepared data."""
    root = tmp_path_factory.mktemp("stream")
    tokenizer = build_tokenizer()
    save_base(root / "base", build_model(tokenizer), tokenizer)

    def prepared(*, seed=0, **data):
        config = ExperimentConfig.model_validate(
            {
                "experiment": {"name": "stream", "runs_dir": str(root), "seed": seed},
                "model": {"path": str(root / "base"), "dtype": "float32"},
                "data": {"shapes": {"num_train": 12, "num_val": 4}, **data},
                "training": {"per_device_batch_size": 4},
            }
        )
        return config, prepare_experiment(config)

    return prepared


def test_it_knows_the_order_and_the_content(make):
    plain = token_stream_hash(*make())
    assert token_stream_hash(*make()) == plain
    assert token_stream_hash(*make(num_workers=2, image_cache_mib=1)) == plain
    others = [{"seed": 1}, {"length_buckets": False}, {"max_objects": 1}, {"prompt": "What is there?"}]
    others += [{"max_train_images": 8}, {"max_train_images": 8, "train_subset_seed": 1}]
    hashes = {token_stream_hash(*make(**changes)) for changes in others}
    assert len(hashes | {plain}) == 1 + len(others)


def _changed(split, *, num=1, **fields):
    changed = [replace(sample, **fields) for sample in split.samples[:num]]
    return replace(split, samples=[*changed, *split.samples[num:]])


def test_a_validation_sample_that_cannot_be_encoded_is_found_before_training(make):
    config, prepared = make()
    marker = things(("<|box_end|>", (0.1, 0.1, 0.5, 0.5)))
    with pytest.raises(DataError, match=r"<\|box_end\|>"):
        token_stream_hash(config, replace(prepared, val=_changed(prepared.val, objects=marker)))
    config, prepared = make(max_length=40)
    small = replace(prepared, train=_changed(prepared.train, num=12, width=64, height=48))
    with pytest.raises(DataError, match=r"val/.*\d+ tokens.*data\.max_length.*\b40\b"):
        token_stream_hash(config, small)
    token_stream_hash(config, replace(small, val=_changed(prepared.val, num=4, width=64, height=48)))
