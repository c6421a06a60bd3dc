"""Encoded samples -> one row without padding, in the only form that keeps them apart.

Several sequences in one row must not see each other. transformers notices that a row is packed from
its *text* positions alone, and only if there is no attention mask and no cache: with the usual three
rows of position ids, with none, with a mask of ones or with a cache, samples read each other and
nothing says so (``tests/unit/train/test_packing.py`` measures each case). So a batch made here goes
with ``use_cache=False`` and without an attention mask, and holds four rows of positions: text
positions that restart at 0 with each sample, then the multimodal ones of each sample.

Shapes: L tokens of all samples together.
"""

from collections.abc import Sequence

import numpy as np
import torch

from coordexp.data.batches.batch import Batch
from coordexp.data.batches.collate import IGNORE, EncodedSample, batch_of
from coordexp.data.batches.positions import rope_positions


def collate_packed(
    samples: Sequence[EncodedSample], *, image_token_id: int, coord_ids: range, merge_size: int
) -> Batch:
    """Join the samples of a batch to one row; losses and gradients are those of the padded batch.

    A sample begins with its prompt, which is not supervised, so the last token of one sample never
    predicts the first of the next.

    Args:
        samples: of one batch, each with a prompt.
        image_token_id: the placeholder of an image token.
        coord_ids: ids of the coord tokens.
        merge_size: patches a side of an image token.
    """
    input_ids = torch.tensor([[token for sample in samples for token in (*sample.prompt_ids, *sample.target_ids)]])
    labels = torch.full_like(input_ids, IGNORE)
    starts = np.cumsum([0, *(sample.length for sample in samples)]).tolist()
    answers = [start + len(sample.prompt_ids) for start, sample in zip(starts, samples, strict=False)]
    for answer, end in zip(answers, starts[1:], strict=True):
        labels[0, answer:end] = input_ids[0, answer:end]
    rope = [rope_positions(sample, image_token_id=image_token_id, merge_size=merge_size) for sample in samples]
    four = [np.concatenate([np.arange(own.shape[1])[None], own]) for own in rope]
    return batch_of(
        samples,
        answers,
        input_ids=input_ids,
        labels=labels,
        position_ids=torch.from_numpy(np.concatenate(four, axis=1)).unsqueeze(1),
        image_token_id=image_token_id,
        coord_ids=coord_ids,
    )
