"""How the samples of a split become sequences and batches: the same for every group of an experiment."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerBase

from coordexp.config.schema import RunConfig
from coordexp.coord_tokens.vocab import CoordVocab, expand_tokenizer, text_vocab
from coordexp.data.batch import Batch, EncodedSample, collate
from coordexp.data.box_limits.count import BoxLimits, over_max_length, over_max_new_tokens, over_max_objects
from coordexp.data.dataset import DetectionDataset
from coordexp.data.images.patches import ImageSpec
from coordexp.data.prompt import Prompt
from coordexp.data.sample import Sample
from coordexp.data.sampler import LengthBucketSampler
from coordexp.model.checkpoint.trained_with import TrainedWith
from coordexp.model.processor import Processor, StoredProcessor


@dataclass(frozen=True)
class Encoding:
    """How samples become sequences and batches; equal for every group of an experiment."""

    config: RunConfig
    tokenizer: PreTrainedTokenizerBase  # with the coord tokens added
    vocab: CoordVocab
    image_spec: ImageSpec
    prompt: Prompt

    @property
    def trained_with(self) -> TrainedWith:
        """What a checkpoint must be asked with later: prompt and image size."""
        return TrainedWith(self.config.data.prompt, self.image_spec.min_pixels, self.image_spec.max_pixels)

    def dataset(
        self, samples: Sequence[Sample], *, with_targets: bool = True, image_cache_mib: int = 0
    ) -> DetectionDataset:
        """Wrap samples as a data set of sequences.

        Args:
            samples: the samples.
            with_targets: whether their answers are part of the sequences. To generate answers, they are not.
            image_cache_mib: memory, in MiB, for decoded images.
        """
        data = self.config.data
        return DetectionDataset(
            samples=samples,
            tokenizer=self.tokenizer,
            vocab=self.vocab if with_targets else None,
            prompt=self.prompt,
            image_spec=self.image_spec,
            ordering=data.ordering,
            max_objects=data.max_objects,
            max_length=data.max_length,
            seed=self.config.experiment.seed,
            image_cache_mib=image_cache_mib,
        )

    def box_limits(self, train: DetectionDataset, train_samples: Sequence[Sample], val: Sequence[Sample]) -> BoxLimits:
        """Count the boxes that the limits of the configuration take away.

        Args:
            train: the training samples as sequences with targets.
            train_samples: the same samples before they were encoded.
            val: the validation samples.
        """
        config = self.config
        return BoxLimits(
            max_objects=over_max_objects(train_samples, config.data.max_objects),
            max_length=over_max_length(train),
            max_new_tokens=over_max_new_tokens(
                val,
                self.tokenizer,
                self.vocab,
                ordering=config.data.ordering,
                seed=config.experiment.seed,
                limit=config.evaluation.max_new_tokens,
            ),
        )

    def collate(self, samples: Sequence[EncodedSample]) -> Batch:
        """Batch samples for training, padded on the right."""
        pad_id = self.tokenizer.pad_token_id
        assert isinstance(pad_id, int), "check_base refuses a tokenizer without a padding token"
        batch = collate(samples, pad_id=pad_id, image_token_id=self.prompt.image_token_id)
        # Attention is causal: no token sees the padding to its right, so no mask is needed. With a mask, transformers
        # would ask the device whether anything is masked, and attention would take a slower kernel.
        return replace(batch, attention_mask=None)


def build_encoding(config: RunConfig, processor: Processor | StoredProcessor) -> Encoding:
    """Fix prompt, image size and vocabulary. Coord tokens that the tokenizer lacks are added to it, in place."""
    if config.text_arm:
        vocab = text_vocab(processor.tokenizer)
    else:
        vocab = expand_tokenizer(processor.tokenizer, structure=config.data.structure)
    spec = ImageSpec.from_processor(
        processor.image_processor, min_pixels=config.data.min_pixels, max_pixels=config.data.max_pixels
    )
    prompt = Prompt.build(processor.tokenizer, config.data.prompt)
    return Encoding(config=config, tokenizer=processor.tokenizer, vocab=vocab, image_spec=spec, prompt=prompt)


def train_order(config: RunConfig, lengths: Sequence[int], *, multiple_of: int = 1) -> LengthBucketSampler:
    """Return the order in which training samples are drawn.

    Args:
        config: the run.
        lengths: number of tokens of each sample.
        multiple_of: an epoch is filled up with empty samples to a multiple of this number.
    """
    return LengthBucketSampler(
        lengths,
        batch_size=config.global_batch_size,
        seed=config.experiment.seed,
        buckets=config.data.length_buckets,
        bucket_size=config.data.bucket_size,
        multiple_of=multiple_of,
    )
