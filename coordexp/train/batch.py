"""A collated batch and its hidden states -> what the loss terms take.

Shapes: B sequences, L padded length, T supervised tokens, N coord tokens, M boxes, U units.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from coordexp.coord_tokens.codec import coord_mask
from coordexp.data.batches.collate import predicts_label
from coordexp.data.images.patches import ImageSpec, pixel_values
from coordexp.losses.head import HeadOutput
from coordexp.losses.term import UNITS, TermInputs

# Of a packed row there is no mask: without one, and without a cache, transformers keeps its samples apart.
MODEL_INPUTS = ("input_ids", "attention_mask", "position_ids", "mm_token_type_ids", "image_grid_thw")


def with_rows(batch: Mapping[str, Tensor], coord_ids: range) -> dict[str, Tensor]:
    """Add to a batch where its supervised tokens, coord tokens and boxes are.

    Done where the batch is made, on the CPU: on a device every one of these shapes depends on data,
    and the host would wait for it.

    Returns:
        The batch with ``supervised_rows`` ``[T]`` (flat positions in ``[B * L]`` that predict a
        label), ``targets`` ``[T]``, ``coord_rows`` ``[N]`` (rows of ``targets`` that are coord
        tokens, ascending), and ``box_rows`` ``[M, 4]`` (rows of ``coord_rows``).
    """
    labels_BL = batch["labels"]
    supervised_rows = predicts_label(labels_BL).flatten().nonzero().squeeze(1)
    targets_T = labels_BL.flatten()[supervised_rows + 1]
    is_coord_T = coord_mask(targets_T, coord_ids)
    row_of_position = torch.full((labels_BL.numel(),), -1)
    row_of_position[supervised_rows + 1] = torch.arange(len(targets_T))
    number_of_row = is_coord_T.cumsum(0) - 1
    return {
        **batch,
        "supervised_rows": supervised_rows,
        "targets": targets_T,
        "coord_rows": is_coord_T.nonzero().squeeze(1),
        "box_rows": number_of_row[row_of_position[batch["box_positions"]]],
    }


def model_inputs(batch: Mapping[str, Tensor], spec: ImageSpec, *, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the keyword arguments of a Qwen3-VL forward."""
    inputs = {name: batch[name] for name in MODEL_INPUTS if name in batch}
    inputs["pixel_values"] = pixel_values(batch["patches"], spec).to(dtype)
    return inputs


def term_inputs(head: HeadOutput, batch: Mapping[str, Tensor], coord_ids: range) -> TermInputs:
    """Join head output and batch; positions come from the labels alone, never from predictions."""
    targets_T, coord_rows_N = batch["targets"], batch["coord_rows"]
    return TermInputs(
        head=head,
        is_coord_T=coord_mask(targets_T, coord_ids),
        coord_bins_N=targets_T.index_select(0, coord_rows_N) - coord_ids.start,
        box_rows_M4=batch["box_rows"],
        boxes_norm_xyxy_M4=batch["boxes_norm_xyxy"],
        box_image_M=batch["box_image"],
        box_object_M=batch["box_object"],
    )


def count_units(batches: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """Count the units of some batches, from shapes alone.

    Returns:
        ``[U]`` float64 on the CPU in the order of UNITS.
    """
    num_tokens = sum(batch["targets"].shape[0] for batch in batches)
    num_coord = sum(batch["coord_rows"].shape[0] for batch in batches)
    num_boxes = sum(batch["box_rows"].shape[0] for batch in batches)
    counts = {
        "tokens": num_tokens,
        "text_tokens": num_tokens - num_coord,
        "coord_tokens": num_coord,
        "boxes": num_boxes,
    }
    return torch.tensor([counts[unit] for unit in UNITS], dtype=torch.float64)
