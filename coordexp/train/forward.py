"""Model -> head -> term inputs: the one forward pass behind training and validation losses.

Shapes: B sequences, L padded length, D hidden, T supervised tokens, V vocabulary, U units.
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
    """Runs ``base``, bare or inside DDP or DeepSpeed, on a batch."""

    base: nn.Module  # the unwrapped model: owner of the output table and of the coord-offset adapter
    vocab: CoordVocab
    image_spec: ImageSpec  # how patches become pixel values

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[TermInputs, Tensor]:
        """Return the term inputs of ``batch``, and the hidden states ``[T, D]`` that all of them come from."""
        vision_dtype = self.base.get_input_embeddings().weight.dtype  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
        inputs = model_inputs(batch, self.image_spec, dtype=vision_dtype)
        with pass_through_head(self.base):
            hidden_BLD = model(**inputs, use_cache=False).logits
        with torch.autocast(device_type=hidden_BLD.device.type, enabled=False):
            hidden_TD = hidden_BLD.flatten(0, 1).index_select(0, batch.supervised_rows)
            return term_inputs(self._head(hidden_TD, batch), batch, self.vocab.numbers.ids), hidden_TD

    def _head(self, hidden_TD: Tensor, batch: Batch) -> HeadOutput:
        weight_VD = self.base.get_output_embeddings().weight  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
        block = self.vocab.numbers.ids
        adapter = active_offset(self.base)
        offset_KD = None
        if adapter is not None:
            offset_KD = head_offset_block(adapter, first_id=block.start, num_ids=len(block))
        if weight_VD.dtype in (torch.bfloat16, torch.float16):
            # Autocast hands outputs on in float32; these values were the model's own, so nothing is lost.
            hidden_TD = hidden_TD.to(weight_VD.dtype)
        num_adapted = len(block) if offset_KD is None else offset_KD.shape[0]
        head = plain_head if weight_VD.requires_grad else partial(split_head, num_adapted=num_adapted)
        return head(
            hidden_TD,
            weight_VD,
            batch.targets,
            first_id=block.start,
            offset_KD=offset_KD,
            num_coords=len(block),
            coord_rows_N=batch.coord_rows,
        )


def model_inputs(batch: Batch, spec: ImageSpec, *, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the keyword arguments of a Qwen3-VL forward."""
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
    """Join head output and batch; positions come from the targets alone, never from predictions."""
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
    """Return the units of some batches, ``[U]`` float64 on the CPU in the order of UNITS, from shapes alone."""
    return _units(
        num_tokens=sum(batch.targets.shape[0] for batch in batches),
        num_coord=sum(batch.coord_rows.shape[0] for batch in batches),
        num_boxes=sum(batch.box_rows.shape[0] for batch in batches),
    )


def mean_units(dataset: DetectionDataset) -> Tensor:
    """Return the ``[U]`` units of one training image on average, by which ``training.normalise_by: data`` divides.

    Objects that ``data.max_length`` cuts off count as boxes and coord tokens here; zeros for no images.
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
