"""Position ids of Qwen3-VL's multimodal rotary embedding, made with the batch instead of on the device.

The model's own ``get_rope_index`` gives the same numbers, but reads every sequence back from the
device to do so: the host then waits for all work before it. Shapes: L tokens, B sequences.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coordexp.data.batches.collate import EncodedSample


def rope_positions(sample: EncodedSample, *, image_token_id: int, merge_size: int) -> NDArray[np.int64]:
    """Number the tokens of one sequence, which holds one image.

    Text counts on; an image stands at one time, its tokens at their row and column, and text goes on
    behind the larger of the two.

    Args:
        sample: prompt with image tokens, and target.
        image_token_id: the placeholder of an image token.
        merge_size: patches a side of an image token.

    Returns:
        ``[3, L]`` int64: time, row and column.

    Source: ``Qwen3VLModel.get_rope_index`` of transformers 5.
    """
    rows, columns = (side // merge_size for side in sample.grid)
    start = sample.prompt_ids.index(image_token_id)
    end = start + rows * columns
    positions = np.empty((3, sample.length), dtype=np.int64)
    positions[:, :start] = np.arange(start)
    positions[0, start:end] = start
    positions[1, start:end] = start + np.repeat(np.arange(rows), columns)
    positions[2, start:end] = start + np.tile(np.arange(columns), rows)
    positions[:, end:] = np.arange(sample.length - end) + start + max(rows, columns)
    return positions


def padded_positions(samples: Sequence[EncodedSample], *, image_token_id: int, merge_size: int) -> Tensor:
    """Return ``[3, B, L]`` int64 for sequences padded on the right; 0 at the padding."""
    length = max(sample.length for sample in samples)
    positions = np.zeros((3, len(samples), length), dtype=np.int64)
    for row, sample in enumerate(samples):
        own = rope_positions(sample, image_token_id=image_token_id, merge_size=merge_size)
        positions[:, row, : sample.length] = own
    return torch.from_numpy(positions)
