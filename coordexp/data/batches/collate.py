"""Encoded samples -> one batch of tensors: right-padded to train, left-padded to generate.

Shapes: B sequences, L padded length, P image patches, M boxes, N coord tokens, T supervised tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

IGNORE = -100


@dataclass(frozen=True)
class EncodedSample:
    """One sample, ready to batch.

    Attributes:
        prompt_ids: token ids of prompt and image.
        target_ids: token ids to learn; empty to generate.
        patches: ``[P, 3 * patch * patch]`` uint8.
        grid: patch rows and columns.
        boxes_norm_xyxy: ``[M, 4]`` float32 box of each complete object in ``target_ids``.
        coord_index: ``[M, 4]`` int64, positions of its coord tokens in ``target_ids``.
        image_id: id in the annotation file.
        is_filler: it only completes the last batch of an epoch: nothing to learn, counted nowhere.
    """

    prompt_ids: list[int]
    target_ids: list[int]
    patches: NDArray[np.uint8]
    grid: tuple[int, int]
    boxes_norm_xyxy: NDArray[np.float32]
    coord_index: NDArray[np.int64]
    image_id: int
    is_filler: bool = False

    @property
    def length(self) -> int:
        """Tokens in the sequence."""
        return len(self.prompt_ids) + len(self.target_ids)


def collate(
    samples: Sequence[EncodedSample], *, pad_id: int, image_token_id: int, pad_left: bool = False
) -> dict[str, Tensor]:
    """Pad samples to one batch.

    Returns:
        ``input_ids, attention_mask, labels, mm_token_type_ids`` ``[B, L]``, and what
        :func:`image_fields` returns.
    """
    length = max(sample.length for sample in samples)
    input_ids = torch.full((len(samples), length), pad_id, dtype=torch.int64)
    labels = torch.full((len(samples), length), IGNORE, dtype=torch.int64)
    attention_mask = torch.zeros((len(samples), length), dtype=torch.int64)
    answers: list[int] = []
    for row, sample in enumerate(samples):
        start = length - sample.length if pad_left else 0
        answer = start + len(sample.prompt_ids)
        end = start + sample.length
        input_ids[row, start:answer] = torch.tensor(sample.prompt_ids)
        input_ids[row, answer:end] = torch.tensor(sample.target_ids, dtype=torch.int64)
        labels[row, answer:end] = input_ids[row, answer:end]
        attention_mask[row, start:end] = 1
        answers.append(row * length + answer)
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "labels": labels,
        "mm_token_type_ids": (input_ids == image_token_id).to(torch.int64),
        **image_fields(samples, answers),
    }


def image_fields(samples: Sequence[EncodedSample], answers: Sequence[int]) -> dict[str, Tensor]:
    """Join what does not depend on how sequences are laid out.

    Args:
        samples: of one batch.
        answers: flat position in the batch where the target of each begins.

    Returns:
        ``patches`` ``[P, C]`` uint8, ``image_grid_thw`` ``[B, 3]``, ``boxes_norm_xyxy`` ``[M, 4]``,
        ``box_positions`` ``[M, 4]`` int64 (flat positions of the coord *labels*), ``box_image`` and
        ``box_object`` ``[M]`` int64 (image in the batch, object in its target), and, without the
        fillers, ``image_ids`` and ``sequence_lengths`` ``[B]``.
    """
    positions = [sample.coord_index + answer for sample, answer in zip(samples, answers, strict=True)]
    num_boxes = [len(own) for own in positions]
    real = [sample for sample in samples if not sample.is_filler]
    return {
        "patches": torch.from_numpy(np.concatenate([sample.patches for sample in samples])),
        "image_grid_thw": torch.tensor([[1, *sample.grid] for sample in samples]),
        "boxes_norm_xyxy": torch.from_numpy(np.concatenate([sample.boxes_norm_xyxy for sample in samples])),
        "box_positions": torch.from_numpy(np.concatenate(positions)),
        "box_image": torch.from_numpy(np.repeat(np.arange(len(samples)), num_boxes)),
        "box_object": torch.from_numpy(np.concatenate([np.arange(num) for num in num_boxes])),
        "image_ids": torch.tensor([sample.image_id for sample in real], dtype=torch.int64),
        "sequence_lengths": torch.tensor([sample.length for sample in real], dtype=torch.int64),
    }


def predicts_label(labels_BL: Tensor) -> Tensor:
    """Mark ``[B, L]`` the positions whose *next* token is supervised."""
    return F.pad(labels_BL[:, 1:] >= 0, (0, 1), value=False)
