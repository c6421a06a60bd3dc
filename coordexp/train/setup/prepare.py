"""What all runs of an experiment share, made once before the first run: the data and the expanded base."""

import hashlib
import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from coordexp.config.schema import RunConfig
from coordexp.data.images.pixels import read_image
from coordexp.data.split_data import SplitData
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.names.categories import CategoryIndex
from coordexp.errors import DataError
from coordexp.files import sha256_of_text
from coordexp.model.processor import Processor
from coordexp.runs.folder import ExperimentFolder
from coordexp.stages import report_stage
from coordexp.train.setup.base import base_hashes, check_attention_of, prepare_base
from coordexp.train.setup.data import ground_truth_of_run, read_split
from coordexp.train.setup.door import open_set_of
from coordexp.train.setup.encoding import build_encoding, train_order
from coordexp.train.setup.strategy import deepspeed_settings

NUM_BATCHES = 100  # global batches that the hash of the token stream covers
_DECODED_IN_ADVANCE = 5_000  # images of a data set at most: each takes about 10 ms at camera size


@dataclass(frozen=True)
class PreparedExperiment:
    """The shared parts of an experiment."""

    base: Path  # the checkpoint that runs start from
    train: SplitData
    val: SplitData
    data_hash: str  # of the set and of the bytes of its pictures
    weights_hash: str  # of the base's weights
    files: dict[str, str]  # hash of each other file that runs read, by names such as ``base/config.json``


def prepare_experiment(config: RunConfig) -> PreparedExperiment:
    """Make the set and the expanded base, or check them if they are there.

    Raises:
        CoordExpError: if something would stop a run, now or after its training.
    """
    check_attention_of(config)
    data_set = open_set_of(config)
    train = read_split(config, "train")
    val = read_split(config, "val")
    samples = [*train.samples, *val.samples]
    if len(samples) <= _DECODED_IN_ADVANCE and config.data.format != "shapes":
        for num_decoded, sample in enumerate(samples, start=1):
            read_image(sample.image, width=sample.width, height=sample.height)  # raises if it cannot be decoded
            report_stage("pictures decoded", num_decoded, len(samples))
    # Read here too: a bad annotation or alias would otherwise show only after training.
    ground_truth = read_ground_truth(ground_truth_of_run(config))
    if config.data.format == "lvis" and ground_truth.federated is None:
        raise DataError(
            f"{config.data.val_annotations}: expected neg_category_ids and not_exhaustive_category_ids in every image "
            "and a frequency (r, c or f) in every category; without them there is no LVIS AP, but COCO's by "
            "data.format: coco"
        )
    CategoryIndex(ground_truth.categories, aliases=config.evaluation.aliases)
    base = prepare_base(config)
    weights_hash, files = base_hashes(base, known=ExperimentFolder.of(config).hashes)
    return PreparedExperiment(
        base=base,
        train=train,
        val=val,
        data_hash=data_set.record.data_hash,
        weights_hash=weights_hash,
        files=files,
    )


def settings_hashes(config: RunConfig) -> dict[str, str]:
    """Return the hash of the DeepSpeed settings that a run reads, by the name of their file; nothing under DDP."""
    settings = deepspeed_settings(config)
    if settings is None:
        return {}
    return {f"deepspeed/{config.cluster.strategy}.json": sha256_of_text(json.dumps(settings, sort_keys=True))}


def token_stream_hash(config: RunConfig, prepared: PreparedExperiment) -> str:
    """Hash the token ids of the first 100 global batches, in reading order. No image is decoded.

    Raises:
        DataError: if a sample of either split cannot be encoded.
    """
    encoding = build_encoding(config, Processor.from_directory(prepared.base))
    dataset = encoding.dataset(prepared.train.samples)
    # Not hashed: a validation description that cannot be encoded raises here, before training, and not in the
    # evaluation that follows it.
    encoding.dataset(prepared.val.samples)
    digest = hashlib.sha256()
    num_hashed = NUM_BATCHES * config.global_batch_size
    for num_done, index in enumerate(islice(train_order(config, dataset.lengths), num_hashed), start=1):
        sequence = [-1, *dataset.token_ids(index)]  # -1 tells where one sample ends and the next begins
        digest.update(np.array(sequence, dtype=np.int64).tobytes())
        report_stage("targets written as tokens", num_done, num_hashed)
    return digest.hexdigest()
