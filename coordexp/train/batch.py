"""A collated batch and its hidden states -> what the loss terms take.

Shapes: B sequences, L padded length, T supervised tokens, N coord tokens, M boxes.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from coordexp.coord_tokens.codec import coord_mask
from coordexp.data.batches.collate import predicts_label
from coordexp.data.images.patches import ImageSpec, pixel_values
from coordexp.losses.criterion import UNITS
from coordexp.losses.head import HeadOutput
from coordexp.losses.term import TermInputs, Unit

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
    """Join head output and batch; positions come from the labels alone (DESIGN 3.7)."""
    targets_T, coord_rows_N = batch["targets"], batch["coord_rows"]
    return TermInputs(
        log_z_T=head.log_z_T,
        log_z_coord_T=head.log_z_coord_T,
        log_z_text_T=head.log_z_text_T,
        target_logit_T=head.target_logit_T,
        ce_T=head.ce_T,
        is_coord_T=coord_mask(targets_T, coord_ids),
        coord_logits_NK=head.coord_logits_NK,
        coord_bins_N=targets_T.index_select(0, coord_rows_N) - coord_ids.start,
        box_rows_M4=batch["box_rows"],
        boxes_norm_xyxy_M4=batch["boxes_norm_xyxy"],
    )


def count_units(batches: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """Count the units of some batches, from shapes alone.

    Returns:
        ``[4]`` float64 on the CPU in the order of UNITS: tokens, text tokens, coord tokens, boxes.
    """
    counts = torch.zeros(len(UNITS), dtype=torch.float64)
    for batch in batches:
        num_tokens, num_coord = batch["targets"].shape[0], batch["coord_rows"].shape[0]
        counts += torch.tensor([num_tokens, num_tokens - num_coord, num_coord, batch["box_rows"].shape[0]])
    return counts


def own_counts(inputs: TermInputs) -> dict[Unit, int]:
    """Count the units of one microbatch from shapes alone."""
    return {unit: inputs.num_units(unit) for unit in UNITS}


def by_unit(counts: Tensor) -> dict[Unit, Tensor]:
    """Name the entries of a count vector."""
    return dict(zip(UNITS, counts.to(torch.float32).unbind(), strict=True))
