"""Encoded samples -> the batch that goes from the loader to the model and the losses.

Shapes: B sequences, L padded length, I images, P image patches, C numbers of a patch, S samples that are no fillers,
T supervised tokens, N of them that carry coordinates, M boxes, K coordinate tokens of a box, R coordinate tokens of a
cut object.
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
        target_ids: token ids to learn; empty when the model generates.
        patches: ``[P, 3 * patch * patch]`` uint8.
        grid: rows and columns of patches.
        boxes_norm_xyxy: ``[M, 4]`` float32 box of each complete object in ``target_ids``.
        coord_index: ``[M, K]`` int64, positions in ``target_ids`` of each box's coordinates: 4 coord tokens or 12
            digits.
        cut_index: ``[R]`` int64, positions in ``target_ids`` of the coordinates of an object that is cut; they come
            after all others.
        is_filler: whether the sample only completes the last batch of an epoch; it teaches nothing and is counted
            nowhere.
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

    The places are found on the CPU, where the batch is made. On a device, their number would depend on data, and the
    host would have to wait for it.

    Attributes:
        input_ids: ``[B, L]`` int64.
        attention_mask: ``[B, L]`` int64, 0 at padding; None if all padding is on the right, where no token sees it.
        mm_token_type_ids: ``[B, L]`` int64, 1 at image tokens.
        labels: ``[B, L]`` int64 true tokens, -100 where nothing is learnt.
        patches: ``[P, C]`` uint8.
        image_grid_thw: ``[I, 3]`` int64: 1, rows and columns of patches.
        supervised_rows: ``[T]`` int64, flat positions in ``[B * L]`` that predict a label.
        targets: ``[T]`` int64, the labels that ``supervised_rows`` predict.
        coord_rows: ``[N]`` int64, rows of ``targets`` that are coord tokens, ascending; in the text arm, digits of
            coordinates.
        coord_places: ``[N]`` int64, the place of each token in its coordinate: 0 for coord tokens, 0 to 2 for digits.
        box_rows: ``[M, K]`` int64, rows of ``coord_rows`` that hold x1, y1, x2, y2 of each box.
        boxes_norm_xyxy: ``[M, 4]`` float32.
        box_image: ``[M]`` int64, the image of the batch that a box belongs to, from 0.
        box_object: ``[M]`` int64, the number of a box's object in its image's target, from 0.
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
        """Move every tensor to a device; accelerate calls this for what a loader gives."""
        return self._changed(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """Copy every tensor to page-locked memory, from which a device reads by itself; torch's loader calls this."""
        return self._changed(Tensor.pin_memory)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: change(value) for name, value in tensors.items()})


@dataclass
class _NumberPlaces:
    """Where the tokens that carry coordinates stand in a batch; one array for each sample.

    Attributes:
        positions: flat positions in ``[B * L]``.
        places: which token of its coordinate each is.
        box_rows: ``[M, K]`` numbers of the tokens of each box, counted over the batch.
        num_tokens: how many such tokens the samples so far have.
    """

    positions: list[NDArray[np.int64]] = field(default_factory=list[NDArray[np.int64]])
    places: list[NDArray[np.int64]] = field(default_factory=list[NDArray[np.int64]])
    box_rows: list[NDArray[np.int64]] = field(default_factory=list[NDArray[np.int64]])
    num_tokens: int = 0

    def add(self, sample: EncodedSample, *, start: int) -> None:
        """Add a sample whose target begins at the flat position ``start``."""
        in_target = np.concatenate([sample.coord_index.ravel(), sample.cut_index])
        self.positions.append(start + in_target)
        # Digits of a coordinate count 0, 1, 2; a coord token is its coordinate's only token, 0:
        #
        #     whole object   x1 0 1 2   y1 0 1 2   x2 0 1 2   y2 0 1 2
        #     cut object     x1 0 1 2   y1 0 1                            its end is beyond the limit
        #
        # Only the last object is ever cut, and from its end. So the tokens that are left of it begin with a whole
        # coordinate, and counting goes on through them as through the tokens of all other objects.
        tokens_of_a_coordinate = sample.coord_index.shape[1] // NUM_COORDS
        self.places.append(np.arange(len(in_target)) % tokens_of_a_coordinate)
        of_boxes = np.arange(sample.coord_index.size).reshape(sample.coord_index.shape)
        self.box_rows.append(self.num_tokens + of_boxes)
        self.num_tokens += len(in_target)


def collate(samples: Sequence[EncodedSample], *, pad_id: int, image_token_id: int) -> Batch:
    """Pad samples on the right to one batch, and find the places of everything that is learnt."""
    length = max(sample.length for sample in samples)
    input_ids = torch.full((len(samples), length), pad_id, dtype=torch.int64)
    labels = torch.full((len(samples), length), IGNORE, dtype=torch.int64)
    attention_mask = torch.zeros((len(samples), length), dtype=torch.int64)
    numbers = _NumberPlaces()
    for row, sample in enumerate(samples):
        target_start, end = len(sample.prompt_ids), sample.length
        input_ids[row, :target_start] = torch.tensor(sample.prompt_ids)
        input_ids[row, target_start:end] = torch.tensor(sample.target_ids, dtype=torch.int64)
        labels[row, target_start:end] = input_ids[row, target_start:end]
        attention_mask[row, :end] = 1
        numbers.add(sample, start=row * length + target_start)

    supervised_rows = predicts_label(labels).flatten().nonzero().squeeze(1)
    targets_T = labels.flatten()[supervised_rows + 1]
    # Flat position of a label -> its row in ``targets_T``; -1 where nothing is learnt.
    row_of_position = torch.full((labels.numel(),), -1)
    row_of_position[supervised_rows + 1] = torch.arange(len(targets_T))
    coord_positions = torch.from_numpy(np.concatenate(numbers.positions))

    num_boxes = [len(sample.boxes_norm_xyxy) for sample in samples]
    box_image = np.repeat(np.arange(len(samples)), num_boxes)
    box_object = np.concatenate([np.arange(num) for num in num_boxes])
    boxes = np.concatenate([sample.boxes_norm_xyxy for sample in samples])
    patches = np.concatenate([sample.patches for sample in samples])
    counted_samples = [sample for sample in samples if not sample.is_filler]
    return Batch(
        input_ids=input_ids,
        attention_mask=attention_mask,
        mm_token_type_ids=(input_ids == image_token_id).to(torch.int64),
        labels=labels,
        patches=torch.from_numpy(patches),
        image_grid_thw=torch.tensor([[1, *sample.grid] for sample in samples]),
        supervised_rows=supervised_rows,
        targets=targets_T,
        coord_rows=row_of_position[coord_positions],
        coord_places=torch.from_numpy(np.concatenate(numbers.places)),
        box_rows=torch.from_numpy(np.concatenate(numbers.box_rows)),
        boxes_norm_xyxy=torch.from_numpy(boxes),
        box_image=torch.from_numpy(box_image),
        box_object=torch.from_numpy(box_object),
        image_ids=torch.tensor([sample.image_id for sample in counted_samples], dtype=torch.int64),
        sequence_lengths=torch.tensor([sample.length for sample in counted_samples], dtype=torch.int64),
    )


def predicts_label(labels_BL: Tensor) -> Tensor:
    """Return ``[B, L]``: whether the *next* token of each position is supervised."""
    return F.pad(labels_BL[:, 1:] >= 0, (0, 1), value=False)
