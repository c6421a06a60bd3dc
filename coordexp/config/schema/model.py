"""Section ``model``: the checkpoint to start from."""

from typing import Literal

from pydantic import model_validator

from coordexp.config.schema.fields import Section, Text, key


class Model(Section):
    """The checkpoint to start from."""

    path: Text = key("embedded", "input", decides=["base", "tokens"])
    """The small Qwen3-VL of the package (embedded), a local directory, or a hub id."""
    revision: str | None = key(None, "input", decides=["base", "tokens"])
    """Branch, tag or commit of a hub id; null takes its main branch."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = key("auto", "results", decides=["base"])
    """Type of the frozen weights; float32 is exact, bfloat16 halves memory, auto keeps the checkpoint's."""
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2"] = key("sdpa", "results", decides=["base"])
    """flash_attention_2 is faster on long answers, and needs its package and half precision."""
    vocab_init: Literal["mean", "numeric"] = key("numeric", "results", decides=["base"])
    """How new coordinate rows start: numeric: between the rows of the digits, so that neighbours are similar; mean: all
    equal."""

    @model_validator(mode="after")
    def _keys_agree(self) -> "Model":
        if self.path == "embedded" and self.revision is not None:
            raise ValueError("revision has no effect on the embedded base; remove it or name a hub id in model.path")
        if self.attn_implementation == "flash_attention_2" and self.dtype == "float32":
            raise ValueError(
                "attn_implementation: flash_attention_2 computes in half precision only; set dtype: bfloat16, or sdpa"
            )
        return self
