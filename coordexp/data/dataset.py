"""Samples -> encoded samples, one at a time: prompt, image and target; what a data loader iterates over."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, get_worker_info
from transformers import PreTrainedTokenizerBase

from coordexp.coord_tokens.bins import NUM_COORDS
from coordexp.coord_tokens.grammar.sequence import (
    Target,
    encode_target,
    num_whole_objects,
    target_length,
    text_encoder,
)
from coordexp.coord_tokens.vocab import CoordVocab
from coordexp.data.batch import EncodedSample
from coordexp.data.images.patches import ImageSpec, to_patches
from coordexp.data.images.pixels import read_image
from coordexp.data.prompt import Prompt
from coordexp.data.sample import Objects, Ordering, Sample
from coordexp.errors import DataError

_Patches = tuple[NDArray[np.uint8], tuple[int, int]]


class DetectionDataset(Dataset[EncodedSample]):
    """Encoded samples in the order of ``samples``.

    Everything that can be known without decoding an image is checked at construction: each description is tokenised
    and each length computed. Decoded images are kept, as uint8 patches, until ``image_cache_mib`` is full; the images
    that came first stay for the whole run. Loader workers share the room out: each worker keeps what it decoded itself,
    for as long as it lives.

    Attributes:
        lengths: tokens of each sample; the same in every epoch.
        num_capped_images: samples with more than ``max_objects`` objects.
        num_capped_objects: objects left out of them: the smallest (:meth:`coordexp.data.sample.Objects.largest`).
        num_cut_samples: samples longer than ``max_length``, which lose the end of their target.
        num_cut_objects: objects that are not whole in those targets; under ``ordering: random``, in the first epoch.
        longest_uncut: the smallest ``max_length`` under which no target is cut.
        num_target_tokens: tokens of all targets.
        num_target_objects: objects of all targets before any is cut.
    """

    def __init__(
        self,
        *,
        samples: Sequence[Sample],
        tokenizer: PreTrainedTokenizerBase,
        vocab: CoordVocab | None,
        prompt: Prompt,
        image_spec: ImageSpec,
        max_objects: int,
        max_length: int,
        seed: int,
        ordering: Ordering = "top_left",
        image_cache_mib: int = 0,
    ) -> None:
        """Check the samples and compute their lengths.

        Args:
            samples: of a split.
            tokenizer: tokenises descriptions.
            vocab: how boxes are written. Without it, samples have no targets: the model is asked, and any tokenizer
                serves.
            prompt: stands before every target.
            image_spec: how images become patches.
            max_objects: objects of a target at most, the largest ones.
            max_length: tokens of a sample at most.
            seed: of ``ordering: random``, together with the epoch and the image id.
            ordering: of the objects in a target.
            image_cache_mib: room for decoded images, of all loader workers together.

        Raises:
            DataError: if a description cannot be used, or ``max_length`` leaves no room for a target.
        """
        self._samples = samples
        self._vocab = vocab
        self._prompt = prompt
        self._image_spec = image_spec
        self._max_objects = max_objects
        self.max_length = max_length
        self._seed = seed
        self._ordering: Ordering = ordering
        self._encode_text = text_encoder(tokenizer)

        num_positions = NUM_COORDS if vocab is None else len(vocab.numbers.number_positions)
        self._no_target = Target([], np.zeros((0, num_positions), np.int64), np.zeros(0, np.int64))

        self._cache: dict[int, _Patches] = {}
        self._cache_bytes = 0
        self._cache_room_bytes = image_cache_mib * 2**20

        self._epoch = torch.zeros((), dtype=torch.int64)
        if ordering == "random":
            # Loader workers live on from one epoch to the next: they read the number of the epoch here.
            self._epoch.share_memory_()

        self.num_capped_images = 0
        self.num_capped_objects = 0
        self.num_cut_samples = 0
        self.num_cut_objects = 0
        self.longest_uncut = 0
        self.num_target_tokens = 0
        self.num_target_objects = 0
        self.lengths = [self._measure(sample) for sample in samples]

    @property
    def num_tokens_of_a_box(self) -> int:
        """Coordinate tokens of one box: 4, or all its digits if coordinates are written as text."""
        return self._no_target.coord_positions.shape[1]

    @property
    def epoch(self) -> int:
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> EncodedSample:
        """Encode one sample; an index ``~i`` gives sample ``i`` as a filler, with nothing to learn.

        Raises:
            DataError: if its image is missing, does not decode, or has another size than annotated.
        """
        is_filler = index < 0
        index = ~index if is_filler else index
        sample = self._samples[index]
        patches, grid = self._patches(index, sample)
        prompt_ids = self._prompt.ids(self._num_image_tokens(sample))
        if self._vocab is not None and not is_filler:
            target, boxes = self._target(sample, room=self.max_length - len(prompt_ids))
        else:
            target, boxes = self._no_target, np.zeros((0, 4), np.float32)
        return EncodedSample(
            prompt_ids=prompt_ids,
            target_ids=target.ids,
            patches=patches,
            grid=grid,
            boxes_norm_xyxy=boxes,
            coord_index=target.coord_positions,
            image_id=sample.image_id,
            cut_index=target.cut_positions,
            is_filler=is_filler,
        )

    def token_ids(self, index: int) -> list[int]:
        """Return prompt and target of one sample, without touching its image."""
        sample = self._samples[index]
        prompt_ids = self._prompt.ids(self._num_image_tokens(sample))
        if self._vocab is None:
            return prompt_ids
        target, _ = self._target(sample, room=self.max_length - len(prompt_ids))
        return prompt_ids + target.ids

    def _target(self, sample: Sample, *, room: int) -> tuple[Target, NDArray[np.float32]]:
        """Return a target of at most ``room`` tokens, and the boxes of its complete objects."""
        assert self._vocab is not None
        objects = self._ordered_objects(sample)
        target = encode_target(objects.descs, objects.boxes_norm_xyxy, self._vocab, self._encode_text, room=room)
        # A target is cut from its end: the complete objects are the first ones.
        num_complete = len(target.coord_positions)
        return target, objects.boxes_norm_xyxy[:num_complete].astype(np.float32)

    def _ordered_objects(self, sample: Sample) -> Objects:
        # Cap first, shuffle afterwards: which objects are learnt must not change with the epoch.
        objects = sample.objects.largest(self._max_objects)
        return objects.ordered(self._ordering, seed=order_seed(self._seed, self.epoch, sample))

    def _patches(self, index: int, sample: Sample) -> _Patches:
        """Return the patches of an image and their grid, from the cache if they are there."""
        cached = self._cache.get(index)
        if cached is not None:
            return cached
        picture = read_image(sample.image, width=sample.width, height=sample.height)
        patches, grid = to_patches(picture, self._image_spec)
        worker = get_worker_info()
        num_workers = 1 if worker is None else worker.num_workers
        if self._cache_bytes + patches.nbytes <= self._cache_room_bytes // num_workers:
            self._cache_bytes += patches.nbytes
            self._cache[index] = patches, grid
        return patches, grid

    def _num_image_tokens(self, sample: Sample) -> int:
        return self._image_spec.num_tokens(width=sample.width, height=sample.height)

    def _measure(self, sample: Sample) -> int:
        """Return the tokens of a sample, and count what the limits take from it."""
        num_prompt = len(self._prompt) + self._num_image_tokens(sample)
        num_target = 0 if self._vocab is None else self._measure_target(sample)
        least = num_prompt + 1 if num_target else num_prompt
        if least > self.max_length:
            raise DataError(
                f"{sample.image}: prompt and image take {num_prompt} tokens, data.max_length is {self.max_length}; "
                f"raise it, or lower data.max_pixels"
            )
        self.longest_uncut = max(self.longest_uncut, num_prompt + num_target)
        if num_prompt + num_target > self.max_length:
            self.num_cut_samples += 1
            self.num_cut_objects += self._num_cut_objects(sample, room=self.max_length - num_prompt)
        length = min(num_prompt + num_target, self.max_length)
        self.num_target_tokens += length - num_prompt
        return length

    def _measure_target(self, sample: Sample) -> int:
        """Return the tokens of an uncut target, and count the objects that ``max_objects`` leaves out."""
        assert self._vocab is not None
        objects = sample.objects.largest(self._max_objects)
        num_capped = len(sample.objects) - len(objects)
        if num_capped:
            self.num_capped_images += 1
            self.num_capped_objects += num_capped
        self.num_target_objects += len(objects)
        try:
            lengths = [len(self._encode_text(desc)) for desc in objects.descs]
        except DataError as error:
            raise DataError(f"{sample.image}: {error}") from None
        return target_length(lengths, self._vocab.structure, num_box_tokens=self._vocab.numbers.num_box_tokens)

    def _num_cut_objects(self, sample: Sample, *, room: int) -> int:
        """Return how many objects of a target are not whole within ``room`` tokens."""
        assert self._vocab is not None
        objects = self._ordered_objects(sample)
        lengths = [len(self._encode_text(desc)) for desc in objects.descs]
        num_box_tokens = self._vocab.numbers.num_box_tokens
        num_whole = num_whole_objects(lengths, self._vocab.structure, num_box_tokens=num_box_tokens, room=room)
        return len(objects) - num_whole


def order_seed(seed: int, epoch: int, sample: Sample) -> tuple[int, int, int]:
    """Return the seed of ``ordering: random`` for one sample in one epoch."""
    return seed, epoch, sample.image_id % 2**64
