"""Qwen3-VL's forward over images without a wait of the host, and with images of one size attended to together.

transformers' own reads sizes and places back from the device, several times in every layer: the host waits for all
work before it each time, and then attends to one image after the other. Here sizes and places come with the batch,
which knew them on the CPU. On a CPU the numbers are those of transformers
(``tests/unit/model/test_image_forward.py``).

Shapes: B sequences, L padded length, D hidden, I images, P patches, G tokens of images, H heads.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import Qwen3VLForConditionalGeneration
from transformers.masking_utils import create_causal_mask, packed_sequence_mask_function
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3_vl.modeling_qwen3_vl import (
    Qwen3VLModel,
    Qwen3VLTextModel,
    Qwen3VLVisionAttention,
    Qwen3VLVisionModel,
    apply_rotary_pos_emb_vision,
    eager_attention_forward,
)
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from coordexp.data.patches import upload

_REMEMBERED_SIZES = 256


@dataclass(frozen=True)
class ImageLayout:
    """Where the images of a batch stand in its sequences, and their sizes, as the host knows them.

    Attributes:
        grids: patch rows and columns of each image, in the order of their tokens.
        token_rows: ``[G]`` int64, flat positions in ``[B * L]`` of all image tokens, ascending; on the model's device.
    """

    grids: tuple[tuple[int, int], ...]
    token_rows: Tensor

    @classmethod
    def read(cls, input_ids: Tensor, image_grid_thw: Tensor, *, image_token_id: int) -> "ImageLayout":
        """Read the layout back from the device, where nobody kept it; the host waits."""
        grids = tuple((int(rows), int(columns)) for _, rows, columns in image_grid_thw.tolist())
        return cls(grids, (input_ids.flatten() == image_token_id).nonzero().squeeze(1))


def install_image_forward(model: Qwen3VLForConditionalGeneration) -> None:
    """Give a model the forward of this file, in place; names, weights and configuration stay as they are."""
    inner = model.model
    inner.__class__ = _Model
    inner.language_model.__class__ = _TextModel
    inner.visual.patch_embed.proj.__class__ = _PatchConvolution
    for block in inner.visual.blocks:
        block.attn.__class__ = _VisionAttention  # pyright: ignore[reportAttributeAccessIssue]


def knows_layout(model: nn.Module) -> bool:
    """Return whether a model inside the head takes an :class:`ImageLayout`, as an installed one does."""
    return isinstance(model, _Model)


class _Model(Qwen3VLModel):
    """Puts images into the embeddings at places that are known; all else is transformers'."""

    visual: Qwen3VLVisionModel

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        pixel_values: Tensor | None = None,
        image_grid_thw: Tensor | None = None,
        image_layout: ImageLayout | None = None,
        mm_token_type_ids: Tensor | None = None,
        **kwargs: object,
    ) -> tuple[object, ...] | BaseModelOutputWithPast:
        """Return the hidden states; ``image_layout`` spares the host a wait."""
        is_plain = kwargs.get("inputs_embeds") is None and kwargs.get("pixel_values_videos") is None
        if input_ids is None or pixel_values is None or image_grid_thw is None or not is_plain:
            return super().forward(
                input_ids=input_ids,  # pyright: ignore[reportArgumentType]
                attention_mask=attention_mask,
                position_ids=position_ids,  # pyright: ignore[reportArgumentType]
                pixel_values=pixel_values,
                image_grid_thw=image_grid_thw,  # pyright: ignore[reportArgumentType]
                mm_token_type_ids=mm_token_type_ids,  # pyright: ignore[reportArgumentType]
                **kwargs,  # pyright: ignore[reportArgumentType]
            )
        ours = {"inputs_embeds", "pixel_values_videos", "video_grid_thw", "mm_encoder_outputs"}
        kwargs = {name: value for name, value in kwargs.items() if name not in ours}
        embeds_BLD: Tensor = self.get_input_embeddings()(input_ids)
        if image_layout is not None and position_ids is not None and len(position_ids) == 4 and attention_mask is None:
            attention_mask = self._packed_mask(embeds_BLD, position_ids[0])
        if image_layout is None:
            image_layout = ImageLayout.read(input_ids, image_grid_thw, image_token_id=self.config.image_token_id)
        image_GD, deepstack = self._image_features(pixel_values, image_grid_thw, image_layout)
        rows_G = image_layout.token_rows
        mixed_BLD = embeds_BLD.flatten(0, 1).index_copy(0, rows_G, image_GD.to(embeds_BLD.dtype)).view_as(embeds_BLD)
        if position_ids is None:
            position_ids = self.compute_3d_position_ids(
                input_ids=input_ids,
                inputs_embeds=mixed_BLD,
                image_grid_thw=image_grid_thw,
                attention_mask=attention_mask,
                past_key_values=kwargs.get("past_key_values"),  # pyright: ignore[reportArgumentType]
                mm_token_type_ids=mm_token_type_ids,  # pyright: ignore[reportArgumentType]
            )
        outputs = self.language_model(
            input_ids=None,
            position_ids=position_ids,
            attention_mask=attention_mask,
            inputs_embeds=mixed_BLD,
            visual_pos_masks=rows_G,
            deepstack_visual_embeds=deepstack,
            **kwargs,
        )
        outputs.rope_deltas = self.rope_deltas  # transformers before 5.20 hands it on
        return outputs

    def _packed_mask(self, embeds_1LD: Tensor, positions_1L: Tensor) -> Tensor | None:
        """Return the mask that keeps the samples of a row apart.

        transformers would make the same one, but first asks the device whether the row is packed at all.
        """
        sample_1L = (positions_1L == 0).cumsum(-1)
        keeps_apart = packed_sequence_mask_function(sample_1L)
        config = self.language_model.config
        return create_causal_mask(config, embeds_1LD, None, None, and_mask_function=keeps_apart)

    def _image_features(
        self, pixel_values: Tensor, image_grid_thw: Tensor, layout: ImageLayout
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the embeddings ``[G, D]`` of the image tokens, and those that the first layers add.

        Raises:
            ValueError: if there are more or fewer image tokens than the images take.
        """
        merge = self.visual.spatial_merge_size**2
        lengths = tuple(rows * columns for rows, columns in layout.grids)
        if sum(lengths) != layout.token_rows.numel() * merge:
            raise ValueError(
                f"expected {sum(lengths) // merge} image tokens for images of {layout.grids} patches, got "
                f"{layout.token_rows.numel()}"
            )
        outputs = self.visual(
            pixel_values.type(self.visual.dtype),
            grid_thw=image_grid_thw,
            return_dict=True,
            **self._known(layout.grids, pixel_values.device),
        )
        return outputs.pooler_output, outputs.deepstack_features

    def get_image_features(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, pixel_values: Tensor, image_grid_thw: Tensor, **kwargs: object
    ) -> object:
        """Return transformers' own features, images with equally many patches together; for ``generate``."""
        grids = image_grid_thw.tolist()
        if all(frames == 1 for frames, _, _ in grids):
            known = self._known([(rows, columns) for _, rows, columns in grids], pixel_values.device)
            kwargs |= {f"image_{name}": value for name, value in known.items()}
        return super().get_image_features(pixel_values, image_grid_thw, **kwargs)  # pyright: ignore

    def _known(self, grids: Sequence[tuple[int, int]], device: torch.device) -> dict[str, object]:
        """Return what the vision tower would read back from the device, as its keyword arguments."""
        tables = [self._grid_tables(grid, device) for grid in grids]
        indices_P4, weights_P4, positions_P2 = (torch.cat(parts) for parts in zip(*tables, strict=True))
        lengths = tuple(rows * columns for rows, columns in grids)
        ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        return {
            "interp_indices": indices_P4,
            "interp_weights": weights_P4,
            "position_ids": positions_P2,
            "cu_seqlens": upload(ends, device),
            "max_seqlen": max(lengths),
            "lengths": lengths,
        }

    def _grid_tables(self, grid: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        visual = self.visual
        return _tables_of_size(
            grid,
            side=visual.num_grid_per_side,
            mode=visual.interpolation_mode,
            align_corners=visual.interpolation_align_corners,
            merge_size=visual.spatial_merge_size,
            device=device,
        )


class _TextModel(Qwen3VLTextModel):
    """Adds image features to hidden states at known places."""

    def _deepstack_process(self, hidden_states: Tensor, visual_pos_masks: Tensor, visual_embeds: Tensor) -> Tensor:
        if visual_pos_masks.dtype == torch.bool:
            return super()._deepstack_process(hidden_states, visual_pos_masks, visual_embeds)
        flat_TD = hidden_states.flatten(0, 1)
        return flat_TD.index_add(0, visual_pos_masks, visual_embeds.to(flat_TD.dtype)).view_as(hidden_states)


class _PatchConvolution(nn.Conv3d):
    """Embeds patches; its kernel is a whole patch, for which cuDNN takes up to seconds a call in half precision."""

    def forward(self, input: Tensor) -> Tensor:
        """Return ``[P, D, 1, 1, 1]`` of patches ``[P, C, T, H, W]``."""
        if input.device.type == "cpu":
            return super().forward(input)  # to transformers' last bit
        return patch_product(input, self.weight, self.bias)


def patch_product(patches: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the convolution of patches ``[P, C, T, H, W]`` with kernels as large as they are, as one product."""
    product_PD = F.linear(patches.flatten(1), weight.flatten(1), bias)
    return product_PD.view(*product_PD.shape, 1, 1, 1)


class _VisionAttention(Qwen3VLVisionAttention):
    """Attends to all images with equally many patches in one call."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        hidden_states: Tensor,
        cu_seqlens: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        max_seqlen: int | None = None,
        lengths: Sequence[int] | None = None,
        **kwargs: object,
    ) -> Tensor:
        """Return ``[P, D]``; ``lengths`` are the patches of each image."""
        implementation = str(self.config._attn_implementation)  # pyright: ignore[reportPrivateUsage]
        if lengths is None or "flash" in implementation:  # which takes images of all sizes at once
            return super().forward(
                hidden_states,
                cu_seqlens=cu_seqlens,
                position_embeddings=position_embeddings,
                max_seqlen=max_seqlen,
                **kwargs,
            )
        query_PHD, key_PHD, value_PHD = self.qkv(hidden_states).unflatten(1, (3, self.num_heads, -1)).unbind(1)
        query_PHD, key_PHD = apply_rotary_pos_emb_vision(query_PHD, key_PHD, *position_embeddings)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        split = [states.split(list(lengths)) for states in (query_PHD, key_PHD, value_PHD)]
        attended: dict[int, Tensor] = {}
        for length in dict.fromkeys(lengths):
            images = [image for image, own in enumerate(lengths) if own == length]
            query, key, value = (torch.stack([parts[image] for image in images]).transpose(1, 2) for parts in split)
            output, _ = attend(
                self,
                query,
                key,
                value,
                attention_mask=None,
                scaling=self.scaling,
                dropout=0.0 if not self.training else self.attention_dropout,
                is_causal=False,
                **kwargs,
            )
            attended |= zip(images, output.flatten(2).unbind(0), strict=True)
        return self.proj(torch.cat([attended[image] for image in range(len(lengths))]))


@functools.lru_cache(maxsize=_REMEMBERED_SIZES)
def _tables_of_size(
    grid: tuple[int, int], *, side: int, mode: str, align_corners: bool, merge_size: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what an image of one size needs: positions to interpolate, their weights, and rotary positions.

    Data sets have few sizes, so these are made once each, on the CPU, where making them waits for nothing.
    """
    with torch.inference_mode(mode=False), torch.no_grad():
        grid_13 = torch.tensor([[1, *grid]])
        indices_P4, weights_P4 = get_vision_interpolation_indices_and_weights(
            grid_13, num_grid_per_side=side, mode=mode, align_corners=align_corners, spatial_merge_size=merge_size
        )
        positions_P2 = get_vision_position_ids(grid_13, merge_size)
        return upload(indices_P4, device), upload(weights_P4, device), upload(positions_P2, device)
