"""Encoded samples -> the batch: what goes from the loader to the model and the losses.

Shapes: B sequences, L padded length, I images, P image patches, C numbers of a patch, S samples that
are no fillers, T supervised tokens, N of them that carry coordinates, M boxes, K tokens of a box that carry its
coordinates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from coordexp.coord_tokens.bins import NUM_COORDS

IGNORE = -100


@dataclass(frozen=True)
class EncodedSample:
    """One sample, ready to batch.

    Attributes:
        prompt_ids: token ids of prompt and image.
        target_ids: token ids to learn; empty to generate.
        patches: ``[P, 3 * patch * patch]`` uint8.
        grid: rows and columns of patches.
        boxes_norm_xyxy: ``[M, 4]`` float32 box of each complete object in ``target_ids``.
        coord_index: ``[M, K]`` int64, positions of its coordinates in ``target_ids``: 4 coord tokens, or 12 digits.
        cut_index: ``[R]`` int64, positions of the coordinates of an object that is cut, behind all others.
        is_filler: it only completes the last batch of an epoch: nothing to learn, counted nowhere.
    """

    prompt_ids: list[int]
    target_ids: list[int]
    patches: NDArray[np.uint8]
    grid: tuple[int, int]
    boxes_norm_xyxy: NDArray[np.float32]
    coord_index: NDArray[np.int64]
    image_id: int
    cut_index: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    is_filler: bool = False

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.target_ids)


@dataclass(frozen=True)
class Batch:
    """One batch of encoded samples, with the places of everything that is learnt.

    Those places are found where the batch is made, on the CPU: on a device their number depends on data, and the
    host would wait for it.

    Attributes:
        input_ids: ``[B, L]`` int64.
        attention_mask: ``[B, L]`` int64, 0 at padding; None where that is on the right, which no token sees.
        mm_token_type_ids: ``[B, L]`` int64, 1 at image tokens.
        labels: ``[B, L]`` int64 true tokens, -100 where nothing is learnt.
        patches: ``[P, C]`` uint8.
        image_grid_thw: ``[I, 3]`` int64: 1, rows and columns of patches.
        supervised_rows: ``[T]`` int64, flat positions in ``[B * L]`` that predict a label.
        targets: ``[T]`` int64, those labels.
        coord_rows: ``[N]`` int64, rows of ``targets`` that are coord tokens, ascending; in the text arm digits of
            coordinates.
        coord_places: ``[N]`` int64, which token of its coordinate each is: 0 for coord tokens, 0 to 2 for digits.
        box_rows: ``[M, K]`` int64, rows of ``coord_rows`` of x1, y1, x2, y2 of each box.
        boxes_norm_xyxy: ``[M, 4]`` float32.
        box_image: ``[M]`` int64, which image of the batch a box belongs to, from 0.
        box_object: ``[M]`` int64, which object of its image's target a box is, from 0.
        image_ids: ``[S]`` int64, ids in the annotation file.
        sequence_lengths: ``[S]`` int64, tokens of each sample without padding.
    """

    input_ids: Tensor
    attention_mask: Tensor | None
    mm_token_type_ids: Tensor
    labels: Tensor
    patches: Tensor
    image_grid_thw: Tensor
    supervised_rows: Tensor
    targets: Tensor
    coord_rows: Tensor
    coord_places: Tensor
    box_rows: Tensor
    boxes_norm_xyxy: Tensor
    box_image: Tensor
    box_object: Tensor
    image_ids: Tensor
    sequence_lengths: Tensor

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """Move every tensor; also how accelerate moves what a loader gives."""
        return self._changed(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """Copy every tensor to memory that a device reads without the host; called by torch's loader."""
        return self._changed(Tensor.pin_memory)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: change(value) for name, value in tensors.items()})


def collate(samples: Sequence[EncodedSample], *, pad_id: int, image_token_id: int) -> Batch:
    """Pad samples on the right to one batch."""
    length = max(sample.length for sample in samples)
    input_ids = torch.full((len(samples), length), pad_id, dtype=torch.int64)
    labels = torch.full((len(samples), length), IGNORE, dtype=torch.int64)
    attention_mask = torch.zeros((len(samples), length), dtype=torch.int64)
    positions: list[NDArray[np.int64]] = []
    places: list[NDArray[np.int64]] = []
    box_rows: list[NDArray[np.int64]] = []
    num_numbers = 0
    for row, sample in enumerate(samples):
        answer, end = len(sample.prompt_ids), sample.length
        input_ids[row, :answer] = torch.tensor(sample.prompt_ids)
        input_ids[row, answer:end] = torch.tensor(sample.target_ids, dtype=torch.int64)
        labels[row, answer:end] = input_ids[row, answer:end]
        attention_mask[row, :end] = 1
        numbers = np.concatenate([sample.coord_index.ravel(), sample.cut_index])
        positions.append(row * length + answer + numbers)
        # An object is cut from its end, so the tokens of its last coordinates go round as those of all others.
        places.append(np.arange(len(numbers)) % (sample.coord_index.shape[1] // NUM_COORDS))
        box_rows.append(num_numbers + np.arange(sample.coord_index.size).reshape(sample.coord_index.shape))
        num_numbers += len(numbers)
    supervised_rows = predicts_label(labels).flatten().nonzero().squeeze(1)
    targets_T = labels.flatten()[supervised_rows + 1]
    row_of_position = torch.full((labels.numel(),), -1)
    row_of_position[supervised_rows + 1] = torch.arange(len(targets_T))
    num_boxes = [len(sample.boxes_norm_xyxy) for sample in samples]
    real = [sample for sample in samples if not sample.is_filler]
    return Batch(
        input_ids=input_ids,
        attention_mask=attention_mask,
        mm_token_type_ids=(input_ids == image_token_id).to(torch.int64),
        labels=labels,
        patches=torch.from_numpy(np.concatenate([sample.patches for sample in samples])),
        image_grid_thw=torch.tensor([[1, *sample.grid] for sample in samples]),
        supervised_rows=supervised_rows,
        targets=targets_T,
        coord_rows=row_of_position[torch.from_numpy(np.concatenate(positions))],
        coord_places=torch.from_numpy(np.concatenate(places)),
        box_rows=torch.from_numpy(np.concatenate(box_rows)),
        boxes_norm_xyxy=torch.from_numpy(np.concatenate([sample.boxes_norm_xyxy for sample in samples])),
        box_image=torch.from_numpy(np.repeat(np.arange(len(samples)), num_boxes)),
        box_object=torch.from_numpy(np.concatenate([np.arange(num) for num in num_boxes])),
        image_ids=torch.tensor([sample.image_id for sample in real], dtype=torch.int64),
        sequence_lengths=torch.tensor([sample.length for sample in real], dtype=torch.int64),
    )


def predicts_label(labels_BL: Tensor) -> Tensor:
    """Mark ``[B, L]`` the positions whose *next* token is supervised."""
    return F.pad(labels_BL[:, 1:] >= 0, (0, 1), value=False)
