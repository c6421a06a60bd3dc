"""Encoded samples -> one batch of tensors: right-padded to train, left-padded to generate.

Shapes: B sequences, L padded length, P image patches, M boxes, T supervised tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from coordexp.data.batches.batch import Batch

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
    samples: Sequence[EncodedSample], *, pad_id: int, image_token_id: int, coord_ids: range, pad_left: bool = False
) -> Batch:
    """Pad samples to one batch; its ``position_ids`` are left to the model.

    Args:
        samples: of one batch.
        pad_id: token of the padding.
        image_token_id: the placeholder of an image token.
        coord_ids: ids of the coord tokens; empty for a vocabulary without them.
        pad_left: pad to generate instead of to train.
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
    return batch_of(
        samples,
        answers,
        input_ids=input_ids,
        labels=labels,
        attention_mask=attention_mask,
        image_token_id=image_token_id,
        coord_ids=coord_ids,
    )


def batch_of(
    samples: Sequence[EncodedSample],
    answers: Sequence[int],
    *,
    input_ids: Tensor,
    labels: Tensor,
    image_token_id: int,
    coord_ids: range,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
) -> Batch:
    """Make the batch of samples whose tokens have been laid out in rows.

    Args:
        samples: of one batch.
        answers: flat position in ``[B * L]`` where the target of each begins.
        input_ids: ``[B, L]``.
        labels: ``[B, L]``.
        image_token_id: the placeholder of an image token.
        coord_ids: ids of the coord tokens.
        attention_mask: as in the batch.
        position_ids: as in the batch.
    """
    supervised_rows = predicts_label(labels).flatten().nonzero().squeeze(1)
    targets_T = labels.flatten()[supervised_rows + 1]
    is_coord_T = (targets_T >= coord_ids.start) & (targets_T < coord_ids.stop)
    row_of_position = torch.full((labels.numel(),), -1)
    row_of_position[supervised_rows + 1] = torch.arange(len(targets_T))
    number_of_row = is_coord_T.cumsum(0) - 1
    positions = [sample.coord_index + answer for sample, answer in zip(samples, answers, strict=True)]
    num_boxes = [len(own) for own in positions]
    real = [sample for sample in samples if not sample.is_filler]
    return Batch(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=position_ids,
        mm_token_type_ids=(input_ids == image_token_id).to(torch.int64),
        labels=labels,
        patches=torch.from_numpy(np.concatenate([sample.patches for sample in samples])),
        image_grid_thw=torch.tensor([[1, *sample.grid] for sample in samples]),
        supervised_rows=supervised_rows,
        targets=targets_T,
        coord_rows=is_coord_T.nonzero().squeeze(1),
        box_rows=number_of_row[row_of_position[torch.from_numpy(np.concatenate(positions))]],
        boxes_norm_xyxy=torch.from_numpy(np.concatenate([sample.boxes_norm_xyxy for sample in samples])),
        box_image=torch.from_numpy(np.repeat(np.arange(len(samples)), num_boxes)),
        box_object=torch.from_numpy(np.concatenate([np.arange(num) for num in num_boxes])),
        image_ids=torch.tensor([sample.image_id for sample in real], dtype=torch.int64),
        sequence_lengths=torch.tensor([sample.length for sample in real], dtype=torch.int64),
    )


def predicts_label(labels_BL: Tensor) -> Tensor:
    """Mark ``[B, L]`` the positions whose *next* token is supervised."""
    return F.pad(labels_BL[:, 1:] >= 0, (0, 1), value=False)
