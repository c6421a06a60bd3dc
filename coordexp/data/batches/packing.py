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
from torch import Tensor

from coordexp.data.batches.collate import IGNORE, EncodedSample, image_fields
from coordexp.data.batches.positions import rope_positions


def collate_packed(samples: Sequence[EncodedSample], *, image_token_id: int, merge_size: int) -> dict[str, Tensor]:
    """Join the samples of a batch to one row; losses and gradients are those of the padded batch.

    A sample begins with its prompt, which is not supervised, so the last token of one sample never
    predicts the first of the next.

    Args:
        samples: of one batch, each with a prompt.
        image_token_id: the placeholder of an image token.
        merge_size: patches a side of an image token.

    Returns:
        ``input_ids, labels, mm_token_type_ids`` ``[1, L]``, ``position_ids`` ``[4, 1, L]``, and what
        :func:`coordexp.data.batches.collate.image_fields` returns. No ``attention_mask``.
    """
    input_ids = torch.tensor([[token for sample in samples for token in (*sample.prompt_ids, *sample.target_ids)]])
    labels = torch.full_like(input_ids, IGNORE)
    starts = np.cumsum([0, *(sample.length for sample in samples)]).tolist()
    answers = [start + len(sample.prompt_ids) for start, sample in zip(starts, samples, strict=False)]
    for answer, end in zip(answers, starts[1:], strict=True):
        labels[0, answer:end] = input_ids[0, answer:end]
    rope = [rope_positions(sample, image_token_id=image_token_id, merge_size=merge_size) for sample in samples]
    four = [np.concatenate([np.arange(own.shape[1])[None], own]) for own in rope]
    return {
        "input_ids": input_ids,
        "labels": labels,
        "mm_token_type_ids": (input_ids == image_token_id).to(torch.int64),
        "position_ids": torch.from_numpy(np.concatenate(four, axis=1)).unsqueeze(1),
        **image_fields(samples, answers),
    }
