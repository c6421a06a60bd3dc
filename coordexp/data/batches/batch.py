"""The batch: what goes from the loader to the model and the losses.

Shapes: B sequences, L padded length, I images, P image patches, C numbers of a patch, S samples that are no fillers,
T supervised tokens, N coord tokens, M boxes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """One batch of encoded samples, with the places of everything that is learnt.

    Those places are found where the batch is made, on the CPU: on a device their number depends on data, and the
    host would wait for it.

    Attributes:
        input_ids: ``[B, L]`` int64; one row of all samples where they are packed.
        attention_mask: ``[B, L]`` int64, 0 at padding; None where samples are packed: without a mask, and without a
            cache, transformers keeps the samples of a row apart.
        position_ids: ``[3, B, L]`` int64 of the multimodal rotary embedding, ``[4, 1, L]`` where samples are packed;
            None: the model finds them itself, and the host waits.
        mm_token_type_ids: ``[B, L]`` int64, 1 at image tokens.
        labels: ``[B, L]`` int64 true tokens, -100 where nothing is learnt.
        patches: ``[P, C]`` uint8.
        image_grid_thw: ``[I, 3]`` int64: 1, rows and columns of patches.
        supervised_rows: ``[T]`` int64, flat positions in ``[B * L]`` that predict a label.
        targets: ``[T]`` int64, those labels.
        coord_rows: ``[N]`` int64, rows of ``targets`` that are coord tokens, ascending.
        box_rows: ``[M, 4]`` int64, rows of ``coord_rows`` of x1, y1, x2, y2 of each box.
        boxes_norm_xyxy: ``[M, 4]`` float32.
        box_image: ``[M]`` int64, which image of the batch a box belongs to, from 0.
        box_object: ``[M]`` int64, which object of its image's target a box is, from 0.
        image_ids: ``[S]`` int64, ids in the annotation file.
        sequence_lengths: ``[S]`` int64, tokens of each sample without padding.
    """

    input_ids: Tensor
    attention_mask: Tensor | None
    position_ids: Tensor | None
    mm_token_type_ids: Tensor
    labels: Tensor
    patches: Tensor
    image_grid_thw: Tensor
    supervised_rows: Tensor
    targets: Tensor
    coord_rows: Tensor
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
        return replace(self, **{name: change(value) for name, value in vars(self).items() if value is not None})
