"""Model -> head -> term inputs: the one forward pass behind training and validation losses.

Shapes: B sequences, L padded length, D hidden, T supervised tokens, V vocabulary, K coord vocabulary, N coord tokens,
M boxes, U units.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from coordexp.coord_tokens.offset_adapter import active_offset, head_offset_block
from coordexp.coord_tokens.vocab import CoordVocab
from coordexp.data.batch import Batch
from coordexp.data.dataset import DetectionDataset
from coordexp.data.images.patches import ImageSpec, pixel_values
from coordexp.losses.head import HeadOutput, plain_head, split_head
from coordexp.losses.term import UNITS, TermInputs, Unit
from coordexp.model.head_bypass import pass_through_head


@dataclass(frozen=True)
class TermForward:
    """Runs the model on a batch up to its hidden states, and the head on the supervised tokens alone."""

    base: nn.Module  # the unwrapped model: owner of the output table and of the coord-offset adapter
    vocab: CoordVocab
    image_spec: ImageSpec  # how patches become pixel values

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[TermInputs, Tensor]:
        """Run a batch forward.

        Args:
            model: ``base``, bare or inside DDP or DeepSpeed, whose hooks then see the forward pass.
            batch: on the model's device.

        Returns:
            The inputs of the loss terms, and the hidden states ``[T, D]`` of the supervised tokens that all terms
            come from.
        """
        vision_dtype = self.base.get_input_embeddings().weight.dtype  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
        inputs = model_inputs(batch, self.image_spec, dtype=vision_dtype)
        # The model's own head would make logits [B, L, V] for prompt and image tokens too, most of which no loss
        # reads. While it passes its input through, ``logits`` are the hidden states.
        with pass_through_head(self.base):
            hidden_BLD = model(**inputs, use_cache=False).logits
        with torch.autocast(device_type=hidden_BLD.device.type, enabled=False):
            hidden_TD = hidden_BLD.flatten(0, 1).index_select(0, batch.supervised_rows)
            head = self._head(hidden_TD, batch)
            return term_inputs(head, batch, self.vocab.numbers.ids), hidden_TD

    def _head(self, hidden_TD: Tensor, batch: Batch) -> HeadOutput:
        """Apply the output table, with coord offsets where they are installed, to hidden states ``[T, D]``."""
        weight_VD = self.base.get_output_embeddings().weight  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
        number_ids = self.vocab.numbers.ids
        adapter = active_offset(self.base)
        offset_KD = None
        if adapter is not None:
            offset_KD = head_offset_block(adapter, first_id=number_ids.start, num_ids=len(number_ids))
        if weight_VD.dtype in (torch.bfloat16, torch.float16):
            # Autocast returned the model's half-precision outputs as float32, so casting them back loses nothing.
            hidden_TD = hidden_TD.to(weight_VD.dtype)
        num_adapted = len(number_ids) if offset_KD is None else offset_KD.shape[0]
        # The split head spares the gradient of the whole table, which a table that trains needs.
        head = plain_head if weight_VD.requires_grad else partial(split_head, num_adapted=num_adapted)
        return head(
            hidden_TD,
            weight_VD,
            batch.targets,
            first_id=number_ids.start,
            offset_KD=offset_KD,
            num_coords=len(number_ids),
            coord_rows_N=batch.coord_rows,
        )


def model_inputs(batch: Batch, spec: ImageSpec, *, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the keyword arguments of a Qwen3-VL forward; ``dtype`` is that of the pixel values."""
    inputs = {
        "input_ids": batch.input_ids,
        "mm_token_type_ids": batch.mm_token_type_ids,
        "image_grid_thw": batch.image_grid_thw,
        "pixel_values": pixel_values(batch.patches, spec).to(dtype),
    }
    if batch.attention_mask is not None:
        inputs["attention_mask"] = batch.attention_mask
    return inputs


def term_inputs(head: HeadOutput, batch: Batch, number_ids: range) -> TermInputs:
    """Join head output and batch. Positions come from the targets alone, never from predictions.

    Args:
        head: logits of the batch's supervised tokens.
        batch: says which of them are coord tokens, and which four make a box.
        number_ids: ids of bins (or digits) 0, 1, ...; bins are counted from the first.
    """
    is_coord_T = torch.zeros_like(batch.targets, dtype=torch.bool).index_fill_(0, batch.coord_rows, True)
    return TermInputs(
        head=head,
        is_coord_T=is_coord_T,
        coord_bins_N=batch.targets.index_select(0, batch.coord_rows) - number_ids.start,
        coord_places_N=batch.coord_places,
        box_rows_M4=batch.box_rows,
        boxes_norm_xyxy_M4=batch.boxes_norm_xyxy,
        box_image_M=batch.box_image,
        box_object_M=batch.box_object,
    )


def count_units(batches: Sequence[Batch]) -> Tensor:
    """Count the units of some batches, from shapes alone, so that the host does not wait for the device.

    Returns:
        ``[U]`` float64 on the CPU, in the order of ``UNITS``.
    """
    return _units(
        num_tokens=sum(batch.targets.shape[0] for batch in batches),
        num_coord=sum(batch.coord_rows.shape[0] for batch in batches),
        num_boxes=sum(batch.box_rows.shape[0] for batch in batches),
    )


def mean_units(dataset: DetectionDataset) -> Tensor:
    """Return the average units of a training image, by which ``training.normalise_by: data`` divides.

    Objects that ``data.max_length`` cuts off count as boxes and coord tokens here.

    Returns:
        ``[U]`` float64 on the CPU, in the order of ``UNITS``; zeros if there are no images.
    """
    num_boxes = dataset.num_target_objects
    num_coord = num_boxes * dataset.num_tokens_of_a_box
    units_U = _units(num_tokens=dataset.num_target_tokens, num_coord=num_coord, num_boxes=num_boxes)
    return units_U / max(1, len(dataset))


def _units(*, num_tokens: int, num_coord: int, num_boxes: int) -> Tensor:
    counts: dict[Unit, int] = {
        "tokens": num_tokens,
        "text_tokens": num_tokens - num_coord,
        "coord_tokens": num_coord,
        "boxes": num_boxes,
    }
    return torch.tensor([counts[unit] for unit in UNITS], dtype=torch.float64)
