"""Bytes that autograd keeps of one sequence or image, layer by layer, for a Qwen3-VL.

Read off ``transformers.models.qwen3_vl`` and PEFT's linear layers, and compared with torch's
saved-tensor hooks by a test. ``w`` is the width of what a layer computes in, ``a`` of an adapter's
input, in bytes. In one text layer each token keeps

- norms: both RMSNorms and those of queries and keys keep a float32 copy of their input;
- attention: queries, keys, values (repeated for every head, since a padded batch has a mask) and
  the output; plus the mask as numbers, ``[B, L, L]`` a layer, once for all heads (of a packed batch,
  which is one row, ``[B * L, B * L]``);
- MLP: gate, its activation, and up;
- linears: the input of each trained linear, whose cast to the adapter's dtype is a copy for each of
  them (without a cast q, k, v share one, and gate, up another), and the r numbers between the two
  halves of LoRA; DoRA keeps two outputs of each linear as well.

A vision block keeps the like for each patch: two LayerNorm inputs, the joint qkv, rotated q and k,
the output, the GELU's input, and the inputs of four linears. A merger keeps four times a patch's width.
"""

from dataclasses import dataclass

from coordexp.model.checkpoint.empty_model import Dimensions
from coordexp.model.load import AttnImplementation
from coordexp.model.lora import Tuning


@dataclass(frozen=True)
class Mode:
    """What decides how much is kept.

    Attributes:
        tuning: ``lora``, ``dora`` or ``full``.
        rank: of the adapters.
        dropout: whether their inputs are dropped out.
        vision: whether the vision tower trains.
        autocast: whether layers compute in bfloat16 whatever the weights are.
        weight_bytes: width of a weight.
        attention: the implementation.
        checkpointing: keep each layer's input only, and compute the rest again.
        packing: whether a batch is one row, whose samples meet in the mask.
    """

    tuning: Tuning
    rank: int
    dropout: bool
    vision: bool
    autocast: bool
    weight_bytes: int
    attention: AttnImplementation
    checkpointing: bool
    packing: bool = False

    @property
    def width(self) -> int:
        """Bytes of a number that a layer computes."""
        return 2 if self.autocast else self.weight_bytes

    @property
    def adapter_width(self) -> int:
        """Bytes of a number in an adapter, whose own weights are float32."""
        return self.width if self.autocast or self.tuning == "full" else 4

    @property
    def casts(self) -> bool:
        """Whether each linear's input is copied to another dtype."""
        if self.tuning == "full":
            return self.autocast and self.weight_bytes == 4
        return self.autocast or self.weight_bytes < 4

    def linear_bytes(self, *, inputs: int, shared_inputs: int, outputs: int, count: int) -> int:
        """Return what ``count`` trained linears keep of a token.

        Args:
            inputs: their input widths, added up.
            shared_inputs: the same with each distinct input once.
            outputs: their output widths, added up.
            count: how many linears.
        """
        kept = (inputs if self.casts else shared_inputs) * self.adapter_width
        if self.tuning == "full":
            return kept
        kept += count * self.rank * self.adapter_width
        kept += inputs * (1 + self.adapter_width) if self.dropout else 0
        return kept + (2 * outputs * self.width if self.tuning == "dora" else 0)


def text_layer_bytes(model: Dimensions, mode: Mode, *, batch_size: int, length: int) -> int:
    """Return what one text layer keeps of ``batch_size`` sequences of ``length`` tokens."""
    text = model.text
    hidden, middle = text.hidden_size, text.intermediate_size
    queries, keys = model.query_width, model.key_width
    norms = 4 * (2 * hidden + queries + keys)
    if mode.tuning == "full":  # a trained scale needs what it scales
        norms += mode.weight_bytes * (2 * hidden + queries + keys)
    linears = mode.linear_bytes(
        inputs=5 * hidden + queries + middle,
        shared_inputs=2 * hidden + middle,
        outputs=2 * hidden + queries + 2 * keys + 2 * middle,
        count=7,
    )
    per_token = norms + 4 * queries * mode.width + 3 * middle * mode.width + linears
    pairs = (batch_size * length) ** 2 if mode.packing else batch_size * length**2
    return batch_size * length * per_token + pairs * _scores_width(mode, text.num_attention_heads, masked=True)


def vision_block_bytes(model: Dimensions, mode: Mode, *, num_images: int, patches: int) -> int:
    """Return what one vision block keeps of ``num_images`` images of ``patches`` patches; 0 where it does not train."""
    if not mode.vision:
        return 0
    vision = model.vision
    hidden, middle = vision.hidden_size, vision.intermediate_size
    inputs = 3 * hidden + middle
    linears = mode.linear_bytes(inputs=inputs, shared_inputs=inputs, outputs=5 * hidden + middle, count=4)
    per_patch = 2 * 4 * hidden + 6 * hidden * mode.width + middle * mode.width + linears
    return num_images * (patches * per_patch + patches**2 * _scores_width(mode, vision.num_heads, masked=False))


def mergers_bytes(model: Dimensions, mode: Mode, *, num_images: int, patches: int) -> int:
    """Return what the mergers keep; 0 where they do not train."""
    if not mode.vision:
        return 0
    vision = model.vision
    hidden = vision.hidden_size
    linears = mode.linear_bytes(inputs=2 * hidden, shared_inputs=2 * hidden, outputs=2 * hidden, count=2)
    num_mergers = 1 + len(vision.deepstack_visual_indexes)
    return num_images * patches * num_mergers * (4 * hidden + hidden * mode.width + linears)


def kept_bytes(model: Dimensions, mode: Mode, *, batch_size: int, length: int, patches: int) -> tuple[int, int]:
    """Return what a whole forward pass keeps: of the text layers, and of the vision tower.

    Under checkpointing each layer keeps its input, and the largest layer is there once while it is
    computed again.
    """
    text, vision = model.text, model.vision
    layer = text_layer_bytes(model, mode, batch_size=batch_size, length=length)
    block = vision_block_bytes(model, mode, num_images=batch_size, patches=patches)
    mergers = mergers_bytes(model, mode, num_images=batch_size, patches=patches)
    ends = batch_size * length * 4 * text.hidden_size  # the last norm's input
    if not mode.checkpointing:
        return text.num_hidden_layers * layer + ends, vision.depth * block + mergers
    stream = mode.weight_bytes
    inputs = text.num_hidden_layers * batch_size * length * text.hidden_size * stream
    patch_inputs = vision.depth * batch_size * patches * vision.hidden_size * stream if mode.vision else 0
    return inputs + ends + max(layer, block), patch_inputs + mergers


def _scores_width(mode: Mode, num_heads: int, *, masked: bool) -> int:
    """Return the bytes kept for each pair of positions."""
    if mode.attention == "eager":
        return num_heads * (4 if mode.width == 4 else 4 + mode.width)  # a softmax in float32, and its cast
    return mode.width if masked and mode.attention == "sdpa" else 0
