"""What the files beside a checkpoint's or an adapter's weights may say of the fields that its numbers follow from.

transformers and PEFT take most values as they come, and fail, go on for ever, or compute something else where one is
used.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic reads that of typing from Python 3.12 on

from coordexp.errors import CheckpointError, show

# Far above any Qwen3-VL (32B: 64 layers, 5,120 wide, 151,936 tokens), far below what would keep a machine busy.
_Layers = Annotated[int, Field(ge=1, le=1_000)]
_Width = Annotated[int, Field(ge=1, le=2**18)]
_Vocabulary = Annotated[int, Field(ge=1, le=2**24)]
_Id = Annotated[int, Field(ge=0, le=2**24)]
_Length = Annotated[int, Field(ge=1, le=2**31)]
_Small = Annotated[int, Field(ge=1, le=64)]
_Positive = Annotated[float, Field(gt=0)]
_Factor = Annotated[float, Field(ge=1)]
_Part = Annotated[float, Field(ge=0, le=1)]
_DType = Literal["bfloat16", "float16", "float32"]
# Of transformers, without those that have weights of their own; its table takes a second to import.
Activation = Literal[
    "gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_python_tanh", "gelu_pytorch_tanh",
    "hardswish", "laplace", "leaky_relu", "linear", "mish", "quick_gelu", "relu", "relu2", "relu6", "sigmoid", "silu",
    "sqrtsoftplus", "swish", "tanh",
]  # fmt: skip
RopeType = Literal["axial", "default", "dynamic", "linear", "llama3", "longrope", "proportional", "yarn"]


class _Rope(TypedDict, total=False):
    rope_type: RopeType
    type: RopeType  # its older name
    rope_theta: _Positive
    mrope_section: Annotated[list[Annotated[int, Field(ge=0, le=2**18)]], Field(min_length=3, max_length=3)]
    mrope_interleaved: bool
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] | None
    factor: _Factor
    original_max_position_embeddings: _Length
    attention_factor: _Positive | None
    beta_fast: _Positive | None
    beta_slow: _Positive | None
    mscale: _Positive | None
    mscale_all_dim: _Positive | None
    truncate: bool
    short_factor: list[_Positive]
    long_factor: list[_Positive]
    low_freq_factor: _Positive
    high_freq_factor: _Positive


class _Text(TypedDict, total=False):
    vocab_size: _Vocabulary
    hidden_size: _Width
    intermediate_size: _Width
    num_hidden_layers: _Layers
    num_attention_heads: _Width
    num_key_value_heads: _Width | None
    head_dim: _Width | None
    hidden_act: Activation
    attention_bias: bool
    attention_dropout: _Part
    max_position_embeddings: _Length
    layer_types: list[Literal["full_attention"]] | None  # Qwen3-VL has no others
    rms_norm_eps: Annotated[float, Field(gt=0, lt=1)]
    rope_theta: _Positive
    rope_scaling: _Rope | None
    rope_parameters: _Rope | None
    dtype: _DType | None
    torch_dtype: _DType | None
    tie_word_embeddings: bool


class _Vision(TypedDict, total=False):
    depth: _Layers
    hidden_size: _Width
    intermediate_size: _Width
    num_heads: _Width
    hidden_act: Activation
    in_channels: _Small
    patch_size: _Width
    spatial_merge_size: _Small
    temporal_patch_size: _Small
    out_hidden_size: _Width
    num_position_embeddings: _Vocabulary
    deepstack_visual_indexes: list[Annotated[int, Field(ge=0, le=1_000)]]  # model_config() knows the depth
    rope_scaling: _Rope | None
    rope_parameters: _Rope | None
    dtype: _DType | None
    torch_dtype: _DType | None


class ModelFields(TypedDict, total=False):
    """Of ``config.json`` of a Qwen3-VL."""

    text_config: _Text
    vision_config: _Vision
    image_token_id: _Id
    video_token_id: _Id
    vision_start_token_id: _Id
    vision_end_token_id: _Id
    dtype: _DType | None
    torch_dtype: _DType | None
    tie_word_embeddings: bool


class ImageFields(TypedDict, total=False):
    """Of ``preprocessor_config.json``."""

    # What every image goes through here, whatever a file says.
    do_resize: Literal[True] | None
    do_rescale: Literal[True] | None
    do_normalize: Literal[True] | None
    resample: Annotated[int, Field(ge=0, le=5)]  # PIL.Image.Resampling

    patch_size: _Width
    merge_size: _Small
    temporal_patch_size: _Small
    image_mean: Annotated[list[float], Field(min_length=3, max_length=3)]
    image_std: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=3, max_length=3)]
    rescale_factor: float
    min_pixels: _Length | None
    max_pixels: _Length | None
    size: dict[str, _Length | None] | None


class ProcessorFields(TypedDict, total=False):
    """Of ``processor_config.json``, whose image processor overrules ``preprocessor_config.json``."""

    image_processor: ImageFields | None


class LoraFields(TypedDict, total=False):
    """Of ``adapter_config.json`` of a LoRA or DoRA adapter."""

    r: _Width
    lora_alpha: Annotated[float, Field(gt=0)]
    lora_dropout: Annotated[float, Field(ge=0, le=1)]
    bias: Literal["none", "all", "lora_only"]
    use_dora: bool
    use_rslora: bool
    fan_in_fan_out: bool
    inference_mode: bool
    target_modules: str | list[str] | None
    exclude_modules: str | list[str] | None
    modules_to_save: list[str] | None
    rank_pattern: dict[str, _Width]
    alpha_pattern: dict[str, Annotated[float, Field(gt=0)]]
    layers_to_transform: int | list[int] | None
    base_model_name_or_path: str | None
    revision: str | None
    task_type: str | None


_KINDS = (ModelFields, ImageFields, ProcessorFields, LoraFields)
_ADAPTERS = {kind: TypeAdapter(kind) for kind in _KINDS}
_Kind = type[ModelFields] | type[ImageFields] | type[ProcessorFields] | type[LoraFields]


def check_fields(kind: _Kind, file: Path, values: dict[str, object]) -> None:
    """Hold the fields that a file names against what they may be.

    Raises:
        CheckpointError: naming file and field.
    """
    try:
        _ADAPTERS[kind].validate_python(values, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(f"{file}: {field} is {show(first['input'])} ({first['msg']})") from None
