"""The sizes of a Qwen3-VL that memory depends on."""

from dataclasses import dataclass

from transformers import Qwen3VLConfig, Qwen3VLTextConfig, Qwen3VLVisionConfig


@dataclass(frozen=True)
class Dimensions:
    """A configuration's two parts, typed.

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
        """Numbers that the keys of a token take; as many again its values."""
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
