"""A collated batch and its hidden states -> what the loss terms take.

Shapes: B sequences, L padded length, T supervised tokens, N coord tokens, M boxes.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from coordexp.coord_tokens.codec import coord_mask
from coordexp.data.image import ImageSpec, pixel_values
from coordexp.losses.criterion import UNITS
from coordexp.losses.head import HeadOutput
from coordexp.losses.term import TermInputs, Unit

MODEL_INPUTS = ("input_ids", "attention_mask", "mm_token_type_ids", "image_grid_thw")


def predicts_label(labels_BL: Tensor) -> Tensor:
    """Mark ``[B, L]`` the positions whose *next* token is supervised."""
    return F.pad(labels_BL[:, 1:] >= 0, (0, 1), value=False)


def model_inputs(batch: Mapping[str, Tensor], spec: ImageSpec, *, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the keyword arguments of a Qwen3-VL forward that keeps supervised positions only."""
    inputs = {name: batch[name] for name in MODEL_INPUTS}
    inputs["pixel_values"] = pixel_values(batch["patches"], spec).to(dtype)
    inputs["logits_to_keep"] = predicts_label(batch["labels"])
    return inputs


def supervised_targets(labels_BL: Tensor) -> Tensor:
    """Return the ``[T]`` supervised token ids, row by row."""
    targets = labels_BL[:, 1:]
    return targets[targets >= 0]


def term_inputs(head: HeadOutput, batch: Mapping[str, Tensor], coord_ids: range) -> TermInputs:
    """Join head output and batch; positions come from the labels alone (DESIGN 3.7)."""
    labels_BL = batch["labels"]
    targets_T = supervised_targets(labels_BL)
    is_coord_T = coord_mask(targets_T, coord_ids)
    supervised = labels_BL >= 0
    supervised[:, 0] = False
    row_of_label = supervised.flatten().cumsum(0) - 1
    coord_of_row = is_coord_T.cumsum(0) - 1
    return TermInputs(
        log_z_T=head.log_z_T,
        log_z_coord_T=head.log_z_coord_T,
        log_z_text_T=head.log_z_text_T,
        target_logit_T=head.target_logit_T,
        is_coord_T=is_coord_T,
        coord_logits_NK=head.coord_logits_NK,
        coord_bins_N=targets_T[is_coord_T] - coord_ids.start,
        box_rows_M4=coord_of_row[row_of_label[batch["box_positions"]]],
        boxes_norm_xyxy_M4=batch["boxes_norm_xyxy"],
    )


def count_units(batches: Sequence[Mapping[str, Tensor]], coord_ids: range) -> Tensor:
    """Count the units of some batches from their labels.

    Returns:
        ``[4]`` float64 in the order of UNITS: tokens, text tokens, coord tokens, boxes.
    """
    counts = torch.zeros(len(UNITS), dtype=torch.float64)
    for batch in batches:
        targets_T = supervised_targets(batch["labels"])
        num_coord = coord_mask(targets_T, coord_ids).sum()
        num_boxes = batch["box_positions"].shape[0]
        counts += torch.tensor([targets_T.numel(), targets_T.numel() - num_coord, num_coord, num_boxes])
    return counts


def own_counts(inputs: TermInputs) -> dict[Unit, int]:
    """Count the units of one microbatch from shapes alone."""
    num_tokens, num_coord = inputs.log_z_T.numel(), inputs.coord_bins_N.numel()
    return {
        "tokens": num_tokens,
        "text_tokens": num_tokens - num_coord,
        "coord_tokens": num_coord,
        "boxes": inputs.box_rows_M4.shape[0],
    }


def by_unit(counts: Tensor) -> dict[Unit, Tensor]:
    """Name the entries of a count vector."""
    return dict(zip(UNITS, counts.to(torch.float32).unbind(), strict=True))
