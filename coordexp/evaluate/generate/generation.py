"""Batched greedy generation that keeps, per token, what scores and expected boxes need.

Shapes: K bins, T generated tokens.
"""

import contextlib
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.grammar.constrain import GrammarProcessor, ObjectGrammar
from coordexp.data.batch import EncodedSample, collate
from coordexp.data.patches import ImageSpec, pixel_values
from coordexp.errors import TrainingError
from coordexp.evaluate.generate.token_statistics import (
    ObjectMarkers,
    RawLogitsRecorder,
    RecordedStatistics,
    TokenStatistics,
)
from coordexp.model.head_bypass import float32_head, watched_head

Readout = Callable[[Tensor], Tensor]
"""Reads the hidden states ``[B, D]`` of a step: a value ``[B]`` each, or vectors ``[B, ...]``."""


class EncodedSamples(Protocol):
    """What is evaluated: a data set that encodes on access."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int, /) -> EncodedSample:
        """Return one sample with empty ``target_ids``."""
        ...


class MeasuredSamples(EncodedSamples, Protocol):
    """Samples that know their lengths before they are encoded."""

    @property
    def lengths(self) -> Sequence[int]:
        """Expected length of each sample."""
        ...


class _Generates(Protocol):
    """``generate`` as PreTrainedModel and PeftModel both have it, and as their annotations do not say."""

    def generate(self, **inputs: object) -> Tensor: ...


class GumbelNoise(LogitsProcessor):
    """Make the most likely token a sample at a temperature, of what the processors before it allow.

    The largest of ``logit / temperature + Gumbel noise`` is distributed as their softmax. The noise comes from a
    generator of its own on the CPU, so that devices and processes sample alike.
    """

    def __init__(self, temperature: float, *, seed: Sequence[int]) -> None:
        self._temperature = temperature
        self._draw = np.random.default_rng(list(seed))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return ``scores`` ``[B, V]`` divided by the temperature, with noise; what is forbidden stays so."""
        noise_BV = torch.from_numpy(self._draw.gumbel(size=tuple(scores.shape)).astype(np.float32))
        return scores / self._temperature + noise_BV.to(scores.device)


@dataclass(frozen=True)
class GeneratedSequence:
    """What was generated for one image, the end token excluded; one entry a token.

    Attributes:
        image_id: id in the annotation file.
        ids: generated token ids.
        statistics: what is kept of each token.
        truncated: the length limit came before the end token.
        stop_margins: log-odds of another object against the end, from raw logits: before the first token, and behind
            each closed object; entry ``n`` is that after ``n`` objects. Empty where answers have no such tokens.
        coord_probs: ``[T, K]`` float32 bin distributions, where they were asked for and there are any.
        readout: ``[T, ...]`` float32, what was read from the hidden states that predict each token, where that was
            asked for.
    """

    image_id: int
    ids: tuple[int, ...]
    statistics: TokenStatistics
    truncated: bool
    stop_margins: tuple[float, ...] = ()
    coord_probs: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    readout: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class GenerationSpec:
    """How to generate.

    Attributes:
        max_new_tokens: length limit of an answer, the end token included.
        pad_id: fills short prompts on the left, and answers behind their end.
        image_token_id: the placeholder of an image patch in the prompt.
        image_spec: how patches become pixel values.
        end_id: ends an answer.
        number_ids: the tokens that carry numbers, whose probability is kept: 1000 bins, or ten digits; empty where
            none are looked at.
        markers: what objects stand between; None where no one token opens or closes them.
    """

    max_new_tokens: int
    pad_id: int
    image_token_id: int
    image_spec: ImageSpec
    end_id: int
    number_ids: range
    markers: ObjectMarkers | None = None


def static_batches(lengths: Sequence[int], *, batch_size: int) -> list[list[int]]:
    """Cut samples into batches of alike lengths, longest first.

    Batches depend on nothing but the lengths. Processes that share the work take whole batches, so
    that each image meets the same neighbours, and the same rounding, however many processes there are.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return [order[at : at + batch_size] for at in range(0, len(order), batch_size)]


def generate_sequences(
    model: PreTrainedModel | PeftModel,
    samples: EncodedSamples,
    *,
    spec: GenerationSpec,
    grammar: ObjectGrammar | None,
    batches: Sequence[Sequence[int]],
    processors: Sequence[LogitsProcessor] = (),
    curves_of: Collection[int] = (),
    on_batch: Callable[[int], None] | None = None,
    readout: Readout | None = None,
) -> list[GeneratedSequence]:
    """Generate greedily, batch by batch.

    Args:
        model: an evaluation-mode model; its own generation defaults are ignored.
        samples: encoded samples with empty targets; read once each, batch by batch.
        spec: limits, and what the tokens are.
        grammar: constrains the output; None for free decoding.
        batches: samples generated together, see :func:`static_batches`.
        processors: further ones, after the grammar; they bend the choice of tokens, never the record.
        curves_of: image ids whose bin distributions are kept whole.
        on_batch: called with the number of images just finished.
        readout: reads the hidden states behind each token; None for nothing.

    Returns:
        One sequence a sample, in the order of ``batches``.

    Raises:
        TrainingError: if the model's logits are not finite.
    """
    done: list[GeneratedSequence] = []
    for batch in batches:
        chosen = [samples[index] for index in batch]
        choosers = [] if grammar is None else [GrammarProcessor(grammar.to(model.device))]
        done += _generate_batch(
            model, chosen, spec=spec, choosers=[*choosers, *processors], curves_of=curves_of, readout=readout
        )
        if on_batch is not None:
            on_batch(len(batch))
    return done


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Generator[None]:
    """Put every module in evaluation mode, and each back into its own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@torch.inference_mode()
def _generate_batch(
    model: PreTrainedModel | PeftModel,
    samples: Sequence[EncodedSample],
    *,
    spec: GenerationSpec,
    choosers: Sequence[LogitsProcessor],
    curves_of: Collection[int],
    readout: Readout | None,
) -> list[GeneratedSequence]:
    device = model.device
    batch = collate(samples, pad_id=spec.pad_id, image_token_id=spec.image_token_id, pad_left=True).to(device)
    has_curves = len(spec.number_ids) == NUM_BINS
    curve_rows = [row for row, sample in enumerate(samples) if has_curves and sample.image_id in curves_of]
    recorder = RawLogitsRecorder(spec.number_ids, markers=spec.markers, curve_rows=curve_rows)
    read: list[Tensor] = []  # a step each

    def look(hidden_BLD: Tensor) -> None:
        if readout is not None:
            read.append(readout(hidden_BLD[:, -1]).float())

    watching = contextlib.nullcontext() if readout is None else watched_head(model, look)
    with _no_inherited_defaults(model), float32_head(model), watching:
        sequences = cast(_Generates, model).generate(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            mm_token_type_ids=batch.mm_token_type_ids,
            pixel_values=pixel_values(batch.patches, spec.image_spec).to(model.dtype),
            image_grid_thw=batch.image_grid_thw,
            logits_processor=LogitsProcessorList([recorder, *choosers]),
            generation_config=_greedy(spec),
        )
    answers = sequences[:, batch.input_ids.shape[1] :]
    recorded = recorder.finish(sequences, num_steps=answers.shape[1])
    curve_of_row = {row: at for at, row in enumerate(curve_rows)}
    done = [
        trimmed(sample.image_id, ids, recorded, row=row, curve=curve_of_row.get(row), spec=spec)
        for row, (sample, ids) in enumerate(zip(samples, answers.tolist(), strict=True))
    ]
    if readout is None:
        return done
    read_BT = torch.stack(read, dim=1).cpu().numpy()
    return [replace(seq, readout=read_BT[row, : len(seq.ids)]) for row, seq in enumerate(done)]


def _greedy(spec: GenerationSpec) -> GenerationConfig:
    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=spec.max_new_tokens,
        # Qwen's padding token is its end-of-text: behind it nothing but padding can follow.
        eos_token_id=sorted({spec.end_id, spec.pad_id}),
        pad_token_id=spec.pad_id,
        use_cache=True,
    )


@contextlib.contextmanager
def _no_inherited_defaults(model: PreTrainedModel | PeftModel) -> Generator[None]:
    """Hide the checkpoint's generation_config.

    ``generate`` fills every None of the config it is handed from the model's own, so that a
    repetition penalty or suppressed tokens of a released checkpoint would bend a plain greedy run.
    """
    owner = cast(PreTrainedModel, model.get_base_model() if isinstance(model, PeftModel) else model)
    kept = owner.generation_config
    owner.generation_config = GenerationConfig()
    try:
        yield
    finally:
        owner.generation_config = kept


def trimmed(
    image_id: int, ids: list[int], recorded: RecordedStatistics, *, row: int, curve: int | None, spec: GenerationSpec
) -> GeneratedSequence:
    """Cut a row of tokens and what was recorded at its end token; without one the answer was cut.

    Raises:
        TrainingError: if the model's logits are not finite.
    """
    length = next((at for at, token in enumerate(ids) if token in (spec.end_id, spec.pad_id)), len(ids))
    if not recorded.is_finite(row, length + 1):
        raise TrainingError(
            f"image {image_id}: the model's logits are not finite; expected the logits of a model that did not diverge"
        )
    boundaries = [] if spec.markers is None else spec.markers.boundaries(ids[:length])
    margins = recorded.margins_BT[row].tolist()
    return GeneratedSequence(
        image_id=image_id,
        ids=tuple(ids[:length]),
        statistics=recorded.of_sequence(row, length),
        truncated=length == len(ids),
        # An answer that is cut right behind an object was not asked whether it goes on.
        stop_margins=tuple(margins[at] for at in boundaries if at < len(ids)),
        coord_probs=None if curve is None else recorded.probs_RTK[curve, :length].numpy(),
    )
