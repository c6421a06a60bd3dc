"""What all runs of an experiment share, made once before the first: the data and the expanded base."""

import hashlib
import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from coordexp.config.schema import RunConfig
from coordexp.data.image_file import read_image
from coordexp.data.sample import SplitData
from coordexp.data.sources.source import SPLITS
from coordexp.data.splits import data_fingerprint
from coordexp.detection.categories import CategoryIndex
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import DataError
from coordexp.files import sha256_of_text
from coordexp.model.processor import Processor
from coordexp.runs.folder import ExperimentFolder
from coordexp.train.setup.base import base_hashes, check_attention_of, prepare_base
from coordexp.train.setup.encoding import build_encoding, read_split, train_order
from coordexp.train.setup.source import source_of_run
from coordexp.train.setup.strategy import deepspeed_settings

NUM_BATCHES = 100
_DECODED_IN_ADVANCE = 5_000  # images: some 10 ms each at camera size


@dataclass(frozen=True)
class PreparedExperiment:
    """The shared parts of an experiment."""

    base: Path  # the checkpoint that runs start from
    train: SplitData
    val: SplitData
    data_hash: str  # of annotations and images, see :func:`coordexp.data.splits.data_fingerprint`
    weights_hash: str  # of the base's weights
    files: dict[str, str]  # hash of each other file that the runs read, by its name: ``base/config.json``


def prepare_experiment(config: RunConfig) -> PreparedExperiment:
    """Generate or check the data and write the expanded base, or raise what would stop a run; again, only check."""
    check_attention_of(config)
    train = read_split(config, "train")
    val = read_split(config, "val")
    folder = ExperimentFolder.of(config)
    sources = [source_of_run(config, split) for split in SPLITS]
    samples = [*train.samples, *val.samples]
    if len(samples) <= _DECODED_IN_ADVANCE and not any(source.generated for source in sources):
        for sample in samples:
            read_image(sample.image, width=sample.width, height=sample.height)
    # A bad annotation or alias would otherwise show only after training.
    ground_truth = read_ground_truth(sources[1].ground_truth())
    if config.data.format == "lvis" and ground_truth.federated is None:
        raise DataError(
            f"{ground_truth.path}: expected neg_category_ids and not_exhaustive_category_ids in every image and a "
            "frequency (r, c or f) in every category; without them there is no LVIS AP, but COCO's by data.format: coco"
        )
    CategoryIndex(ground_truth.categories, aliases=config.evaluation.aliases)
    base = prepare_base(config)
    weights_hash, files = base_hashes(base, known=folder.hashes)
    return PreparedExperiment(
        base=base,
        train=train,
        val=val,
        data_hash=data_fingerprint(
            [path for one in sources for path in (one.annotations, one.given_images)],
            known=folder.data_hashes,
            without=config.experiment.runs_dir,
        ),
        weights_hash=weights_hash,
        files=files,
    )


def settings_hashes(config: RunConfig) -> dict[str, str]:
    """Hash the settings of DeepSpeed that a run reads from a file, by the file's name."""
    settings = deepspeed_settings(config)
    if settings is None:
        return {}
    return {f"deepspeed/{config.cluster.strategy}.json": sha256_of_text(json.dumps(settings, sort_keys=True))}


def token_stream_hash(config: RunConfig, prepared: PreparedExperiment) -> str:
    """Hash the ids of the first 100 global batches, in reading order; no image is decoded.

    Validation samples are encoded too: a description or a prompt that cannot be used shows before
    training, not in the evaluation behind it.
    """
    encoding = build_encoding(config, Processor.from_directory(prepared.base))
    dataset = encoding.dataset(prepared.train.samples)
    encoding.dataset(prepared.val.samples)
    digest = hashlib.sha256()
    for index in islice(train_order(config, dataset.lengths), NUM_BATCHES * config.global_batch_size):
        digest.update(np.array([-1, *dataset.token_ids(index)], dtype=np.int64).tobytes())
    return digest.hexdigest()
