"""The token ids of a run's first batches as one hash: proof that two runs read the same sequences in the same order."""

import hashlib
from itertools import islice

import numpy as np

from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.vocab import coord_vocab
from coordexp.data.batches.sampler import LengthBucketSampler
from coordexp.model.processor import Processor
from coordexp.train.setup.components import build_encoding
from coordexp.train.setup.prepare import PreparedExperiment

NUM_BATCHES = 100


def token_stream_hash(config: ExperimentConfig, prepared: PreparedExperiment) -> str:
    """Hash the ids of the first 100 global batches, in reading order; no image is decoded.

    Validation samples are encoded too: a description or a prompt that cannot be used shows before
    training, not in the evaluation behind it.

    Args:
        config: one run's resolved configuration.
        prepared: the experiment's data and expanded base.

    Returns:
        SHA-256 in hex.

    Raises:
        DataError: if a description or the length of a prompt cannot be used.
    """
    processor = Processor.from_directory(prepared.base)
    vocab = coord_vocab(processor.tokenizer, structure=config.data.structure)
    encoding = build_encoding(config, processor, vocab)
    dataset = encoding.dataset(prepared.train.samples)
    encoding.dataset(prepared.val.samples)
    global_batch = global_batch_size(config)
    sampler = LengthBucketSampler(
        dataset.lengths, batch_size=global_batch, seed=config.experiment.seed, buckets=config.data.length_buckets
    )
    digest = hashlib.sha256()
    for index in islice(sampler, NUM_BATCHES * global_batch):
        digest.update(np.array([-1, *dataset.token_ids(index)], dtype=np.int64).tobytes())
    return digest.hexdigest()


def global_batch_size(config: ExperimentConfig) -> int:
    """Return the samples of one optimizer step over all ranks."""
    training = config.training
    return training.per_device_batch_size * training.gradient_accumulation_steps * config.cluster.num_workers
