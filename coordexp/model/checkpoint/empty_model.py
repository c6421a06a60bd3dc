"""The model of a configuration without its weights: what sizes it has, and which weights it needs."""

import copy
from dataclasses import dataclass

import torch
from accelerate import init_empty_weights
from transformers import (
    AutoModelForImageTextToText,
    PreTrainedModel,
    Qwen3VLConfig,
    Qwen3VLTextConfig,
    Qwen3VLVisionConfig,
)

from coordexp.errors import CheckpointError, summary
from coordexp.model.progress import quiet

EMBEDDING = "model.language_model.embed_tokens.weight"
HEAD = "lm_head.weight"

# What transformers and torch raise for a configuration that makes no sense.
_CONFIG_ERRORS = (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, AttributeError, AssertionError)


@dataclass(frozen=True)
class Dimensions:
    """The sizes of a Qwen3-VL that memory and arithmetic depend on.

    Attributes:
        text: of the language model, its ``vocab_size`` that of the expanded vocabulary.
        vision: of the vision tower.
    """

    text: Qwen3VLTextConfig
    vision: Qwen3VLVisionConfig

    @classmethod
    def of(cls, config: Qwen3VLConfig) -> "Dimensions":
        """Take a configuration apart."""
        text, vision = config.text_config, config.vision_config
        assert isinstance(text, Qwen3VLTextConfig)
        assert isinstance(vision, Qwen3VLVisionConfig)
        return cls(text, vision)

    @property
    def query_width(self) -> int:
        """Numbers that the queries of a token take."""
        return self.text.num_attention_heads * self.text.head_dim

    @property
    def key_width(self) -> int:
        """Numbers that the keys of a token take; its values take as many again."""
        heads = self.text.num_key_value_heads
        return (self.text.num_attention_heads if heads is None else heads) * self.text.head_dim

    @property
    def patch_size(self) -> int:
        """Side of a patch in pixels."""
        side = self.vision.patch_size
        assert isinstance(side, int)
        return side

    @property
    def temporal_patch_size(self) -> int:
        """Frames of a patch."""
        frames = self.vision.temporal_patch_size
        assert isinstance(frames, int)
        return frames

    @property
    def merge_size(self) -> int:
        """Patches that become one token, along one side."""
        return self.vision.spatial_merge_size


def empty_model(config: Qwen3VLConfig, *, dtype: torch.dtype) -> PreTrainedModel:
    """Return the model of a configuration in evaluation mode, its parameters on the meta device.

    Buffers are tables that the model computes when it is made, such as those of the rotary embedding: they are real.

    Raises:
        CheckpointError: if no model can be made of the configuration.
    """
    try:
        with quiet(), init_empty_weights(include_buffers=False):
            # A copy, because making a model writes its dtype into the configuration.
            model = AutoModelForImageTextToText.from_config(copy.deepcopy(config), dtype=dtype)
    except _CONFIG_ERRORS as error:
        raise CheckpointError(f"config.json: no model can be made of it ({summary(error)})") from None
    assert isinstance(model, PreTrainedModel)
    model.tie_weights()
    return model.eval()


def has_tied_head(model: PreTrainedModel) -> bool:
    """Return whether embedding and head are one table."""
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def needed_shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight that ``from_pretrained`` would read, by name; a tied head is none of them."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if has_tied_head(model):
        del shapes[HEAD]
    return shapes
