"""What a run needs of a device's memory, summand by summand: while it trains, and while it generates.

Training, all at once at the end of the forward pass:

- weights: of the base, in their dtype, and of what is trained (a copy of the offset tables that PEFT makes too);
- gradients: of what is trained; twice with several workers, since DDP keeps buckets of them. DeepSpeed's ZeRO-2
  divides gradients and moments over the workers, and ZeRO-3 the weights too, but for the output table;
- AdamW: two moments of what is trained, and once more its size while it steps;
- autocast: bfloat16 copies of the float32 weights, kept until backward (``precision: bfloat16`` only);
- text and vision activations: see :mod:`coordexp.doctor.activations`;
- head: hidden states of supervised tokens and their mean rows in float32, the 1000 coord logits with
  their gradient, the adapted rows, and three chunks of the table; under full tuning two ``[T, V]`` instead;
- pixels: uint8 patches, scaled in float64, and the float values repeated over time;
- backward: the gradients that flow through one MLP, three times its width.

Evaluation has weights, moments, and

- key-value cache of ``evaluation.batch_size`` x (prompt + ``max_new_tokens``), and one layer's copy as it grows;
- prefill: the widest text layer and vision block of the whole batch, and its pixels;
- logits: four float32 ``[B, V]`` a step.

On top of either: what the process itself takes (CUDA context, kernels, workspaces; on a CPU Python and its
libraries), and a twentieth for fragmentation.
"""

from dataclasses import dataclass

from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.doctor.activations import Mode, kept_bytes
from coordexp.doctor.sizes import Sizes
from coordexp.model.checkpoint.empty_model import Dimensions

_CONTEXT_BYTES_GPU = 800 * 2**20
_PROCESS_BYTES_CPU = 700 * 2**20
_HEAD_CHUNK_ELEMENTS_GPU, _HEAD_CHUNK_ELEMENTS_CPU = 16 * 2**20, 2 * 2**20  # as losses.head_functions cuts them
_FRAGMENTATION = 0.05

TRAINING, EVALUATION = "training", "evaluation"  # the phases


@dataclass(frozen=True)
class Shape:
    """The longest sequence of a batch, or an ordinary one.

    Attributes:
        prompt: tokens of prompt and image.
        length: tokens of the whole sequence.
        patches: of its image.
    """

    prompt: int
    length: int
    patches: int


@dataclass(frozen=True)
class Summand:
    """One part of the memory."""

    name: str
    num_bytes: int


@dataclass(frozen=True)
class Phase:
    """What a device holds at the peak of training, or of evaluation."""

    name: str
    summands: tuple[Summand, ...]

    @property
    def num_bytes(self) -> int:
        """All of it."""
        return sum(summand.num_bytes for summand in self.summands)


@dataclass(frozen=True)
class Estimate:
    """Memory of one device with one run's worker on it.

    Attributes:
        phases: training and evaluation; the larger one counts.
        fixed_bytes: what any batch needs: weights, gradients, moments, the process.
    """

    phases: tuple[Phase, ...]
    fixed_bytes: int

    @property
    def num_bytes(self) -> int:
        """At the peak."""
        return max(phase.num_bytes for phase in self.phases)


def estimate(model: Dimensions, run: ExperimentConfig, sizes: Sizes, shape: Shape, *, on_gpu: bool) -> Estimate:
    """Estimate the memory of one worker with a batch of equal sequences.

    Args:
        model: the base, its vocabulary expanded.
        run: batch sizes, precision and what trains.
        sizes: from :mod:`coordexp.doctor.sizes`.
        shape: of every sequence in the batch.
        on_gpu: whether a GPU computes.
    """
    process = Summand(
        "CUDA context" if on_gpu else "Python and libraries", _CONTEXT_BYTES_GPU if on_gpu else _PROCESS_BYTES_CPU
    )
    weights = Summand("weights", sizes.num_bytes)
    moments = Summand("AdamW moments", 2 * sizes.trained_bytes // _shares(run))
    fixed = [process, weights, moments]
    gradients = Summand("gradients", _gradients(run, sizes))
    training = [process, _training_weights(model, run, sizes), moments, gradients]
    training += _training(model, run, sizes, shape, on_gpu=on_gpu)
    evaluation = [*fixed, *_evaluation(model, run, sizes, shape)]
    return Estimate(
        phases=(_phase(TRAINING, training), _phase(EVALUATION, evaluation)),
        fixed_bytes=sum(summand.num_bytes for summand in (*fixed, gradients)),
    )


def mode_of(run: ExperimentConfig, sizes: Sizes) -> Mode:
    """Return what decides how much a forward pass keeps."""
    training = run.training
    frozen_bytes, num_frozen = sizes.num_bytes - sizes.trained_bytes, sizes.num - sizes.num_trained
    # A frozen base with float32 offsets copied beside it is still one of two bytes.
    width = round(frozen_bytes / num_frozen) if num_frozen else round(sizes.num_bytes / sizes.num)
    return Mode(
        tuning=training.tuning,
        rank=training.lora.rank,
        dropout=training.lora.dropout > 0,
        vision=training.lora.vision or training.tuning == "full",
        autocast=training.precision == "bfloat16",
        weight_bytes=width,
        attention=run.model.attn_implementation,
        checkpointing=training.gradient_checkpointing,
        packing=run.data.packing,
    )


def _shares(run: ExperimentConfig) -> int:
    """Return over how many workers optimizer states and gradients are divided."""
    return 1 if run.cluster.strategy == "ddp" else run.cluster.num_workers


def _gradients(run: ExperimentConfig, sizes: Sizes) -> int:
    if run.cluster.strategy == "ddp":
        return sizes.trained_bytes * (2 if run.cluster.num_workers > 1 else 1)
    return 2 * sizes.trained_bytes // _shares(run)  # a share of gradients, and as much again of copied weights


def _training_weights(model: Dimensions, run: ExperimentConfig, sizes: Sizes) -> Summand:
    if run.cluster.strategy != "zero3":
        return Summand("weights", sizes.num_bytes)
    table = model.text.vocab_size * model.text.hidden_size * mode_of(run, sizes).weight_bytes
    return Summand("weights", sizes.num_bytes // run.cluster.num_workers + table)


def _training(model: Dimensions, run: ExperimentConfig, sizes: Sizes, shape: Shape, *, on_gpu: bool) -> list[Summand]:
    mode, batch = mode_of(run, sizes), run.training.per_device_batch_size
    text, vision = kept_bytes(model, mode, batch_size=batch, length=shape.length, patches=shape.patches)
    middle = 3 * model.text.intermediate_size * mode.width
    vision_middle = 3 * model.vision.intermediate_size * mode.width if mode.vision else 0
    supervised = batch * max(1, shape.length - shape.prompt)
    copies = 2 * sizes.num_float32 if mode.autocast else 0
    return [
        Summand("AdamW step", sizes.trained_bytes // _shares(run)),
        Summand("autocast copies", copies),
        Summand("text activations", text),
        Summand("vision activations", vision),
        Summand("head", _head(model, mode, supervised, on_gpu=on_gpu)),
        Summand("pixels", _pixels(model, mode, batch * shape.patches)),
        Summand("backward", batch * max(shape.length * middle, shape.patches * vision_middle)),
    ]


def _head(model: Dimensions, mode: Mode, num_tokens: int, *, on_gpu: bool) -> int:
    text = model.text
    hidden = 2 * 4 * num_tokens * text.hidden_size
    if mode.tuning == "full":
        return hidden + 2 * 4 * num_tokens * text.vocab_size
    chunk = _HEAD_CHUNK_ELEMENTS_GPU if on_gpu else _HEAD_CHUNK_ELEMENTS_CPU
    chunk = min(chunk, max(num_tokens, text.hidden_size) * text.vocab_size)
    return hidden + 2 * 4 * num_tokens * NUM_BINS + 2 * 4 * NUM_BINS * text.hidden_size + 3 * 4 * chunk


def _pixels(model: Dimensions, mode: Mode, num_patches: int) -> int:
    vision = model.vision
    values = vision.in_channels * model.patch_size**2
    return num_patches * values * (1 + 8 + model.temporal_patch_size * (4 + mode.weight_bytes))


def _evaluation(model: Dimensions, run: ExperimentConfig, sizes: Sizes, shape: Shape) -> list[Summand]:
    mode, batch, text = mode_of(run, sizes), run.evaluation.batch_size, model.text
    width = mode.weight_bytes  # evaluation runs without autocast
    cached = 2 * model.key_width * width
    length = shape.prompt + run.evaluation.max_new_tokens
    vision = model.vision
    # An adapter's input is cast to float32 while its linear runs.
    text_widest = text.intermediate_size * (3 * width + 4) + 4 * text.hidden_size * width
    vision_widest = max(vision.intermediate_size * (2 * width + 4), vision.hidden_size * (3 * width + 4 * 4)) + (
        2 * vision.hidden_size * width
    )
    return [
        Summand("key-value cache", batch * length * cached * (text.num_hidden_layers + 1)),
        Summand("prefill", batch * max(shape.prompt * text_widest, shape.patches * vision_widest)),
        Summand("pixels", _pixels(model, mode, batch * shape.patches)),
        Summand("logits", 4 * 4 * batch * text.vocab_size),
    ]


def _phase(name: str, summands: list[Summand]) -> Phase:
    total = sum(summand.num_bytes for summand in summands)
    return Phase(name, (*summands, Summand("fragmentation", round(_FRAGMENTATION * total))))
