"""Batched greedy generation that keeps, per token, what scores and expected boxes need.

Shapes: B sequences, L tokens so far, V vocabulary, K bins, T generated tokens, R rows with curves, S statistics.
"""

import contextlib
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field
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
from coordexp.model.head_bypass import float32_head


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


@dataclass(frozen=True)
class ObjectMarkers:
    """The tokens between which an answer goes on or ends.

    Attributes:
        open_id: opens an object.
        close_id: closes it.
        end_id: ends the answer.
    """

    open_id: int
    close_id: int
    end_id: int

    def boundaries(self, ids: Sequence[int]) -> list[int]:
        """Return the positions at which an answer goes on or ends: its first, and those behind closed objects."""
        return [0, *(at + 1 for at, token in enumerate(ids) if token == self.close_id)]


@dataclass(frozen=True)
class TokenStatistics:
    """Statistics of the tokens of one sequence, one entry a token; all are from raw logits.

    Bins have a distribution of which mean and width are kept; digits of a number written as text have not.

    Attributes:
        log_probs: log probability of each emitted token over the full vocabulary.
        coord_mass: total probability of the coord vocabulary, or of the digits, at each position.
        expected: expected coordinate at each position, as a fraction of the image side; empty for digits.
        width: standard deviation of the bin distribution at each position, in bins; empty for digits.
    """

    log_probs: tuple[float, ...]
    coord_mass: tuple[float, ...]
    expected: tuple[float, ...] = ()
    width: tuple[float, ...] = ()


@dataclass(frozen=True)
class RecordedStatistics:
    """What one ``generate`` call left behind, on the CPU.

    Attributes:
        values_SBT: in the order of the fields of :class:`TokenStatistics`; of digits the first two.
        margins_BT: log-odds of another object against the end at every step; 0 where answers have no such tokens.
        probs_RTK: bin distributions of the chosen rows; empty if none was chosen.
    """

    values_SBT: Tensor
    margins_BT: Tensor
    probs_RTK: Tensor

    def is_finite(self, row: int, length: int) -> bool:
        """Say whether the statistics of a sequence are finite in its first ``length`` steps."""
        return bool(self.values_SBT[:, row, :length].isfinite().all())

    def of_sequence(self, row: int, length: int) -> TokenStatistics:
        """Return the statistics of the first ``length`` tokens of a sequence."""
        return TokenStatistics(*map(tuple, self.values_SBT[:, row, :length].tolist()))


class RawLogitsRecorder(LogitsProcessor):
    """Reads the raw logits of every step of one ``generate`` call; first in the list, changes nothing.

    Which token is emitted is known only at the next call, so one ``[B, V]`` is kept until then; of
    earlier steps only scalars a row remain, on the device, and the ``[R, K]`` distributions of ``curve_rows``.
    Digits have no distribution over bins; without any number ids the mass is 0.
    """

    def __init__(
        self, number_ids: range, *, markers: ObjectMarkers | None = None, curve_rows: Sequence[int] = ()
    ) -> None:
        self._numbers = slice(number_ids.start, number_ids.stop)
        self._markers = markers
        self._are_bins = len(number_ids) == NUM_BINS
        self._curve_rows = torch.tensor(curve_rows, dtype=torch.int64)
        self._pending: tuple[Tensor, Tensor] | None = None
        self._log_probs: list[Tensor] = []
        self._steps: list[Tensor] = []
        self._probs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Record a step; ``scores`` ``[B, V]`` is returned as it came."""
        self._settle(input_ids)
        logits_BV = scores.float()
        total_B = logits_BV.logsumexp(dim=1)
        number_BK = logits_BV[:, self._numbers]
        # A sum over no number is no probability, but the statistics of every step have one shape.
        mass_B = (number_BK.logsumexp(dim=1) - total_B).exp() if number_BK.shape[1] else torch.zeros_like(total_B)
        margin_B = torch.zeros_like(total_B)
        if self._markers is not None:
            margin_B = logits_BV[:, self._markers.open_id] - logits_BV[:, self._markers.end_id]
        self._steps.append(torch.stack((margin_B, mass_B, *(self._of_bins(number_BK) if self._are_bins else ()))))
        self._pending = (logits_BV, total_B)
        return scores

    def finish(self, sequences_BL: Tensor, *, num_steps: int) -> RecordedStatistics:
        """Return what was recorded in the first ``num_steps`` steps; the one synchronisation."""
        self._settle(sequences_BL)
        log_probs_BT = torch.stack(self._log_probs[:num_steps], dim=1)
        others_SBT = torch.stack(self._steps[:num_steps], dim=2)
        margins_BT, *values = torch.cat((others_SBT[:1], log_probs_BT.unsqueeze(0), others_SBT[1:])).cpu()
        probs = torch.stack(self._probs[:num_steps], dim=1).cpu() if self._probs else torch.zeros(0, 0, NUM_BINS)
        return RecordedStatistics(torch.stack(values), margins_BT, probs_RTK=probs)

    def _of_bins(self, bin_BK: Tensor) -> tuple[Tensor, Tensor]:
        """Return expected coordinates and widths of a step."""
        p_BK = bin_BK.softmax(dim=1)
        if len(self._curve_rows):
            self._curve_rows = self._curve_rows.to(p_BK.device)
            self._probs.append(p_BK.index_select(0, self._curve_rows))
        return mean_and_width(p_BK)

    def _settle(self, input_ids: Tensor) -> None:
        if self._pending is not None:
            logits_BV, total_B = self._pending
            self._log_probs.append(logits_BV.gather(1, input_ids[:, -1:]).squeeze(1) - total_B)
            self._pending = None


def mean_and_width(p_BK: Tensor) -> tuple[Tensor, Tensor]:
    """Return the expected coordinates and the standard deviations of bin distributions.

    Args:
        p_BK: ``[B, K]`` probabilities of the bins.

    Returns:
        ``[B]`` sum_k p_k k / K, a fraction of the image side, the same number as
        :func:`coordexp.coord_tokens.expectation.expected_values`; and ``[B]`` widths in bins.
    """
    bins_K = torch.arange(NUM_BINS, dtype=p_BK.dtype, device=p_BK.device)
    mean_B = (p_BK * bins_K).sum(dim=1)
    # E[k^2] - E[k]^2 would lose a quarter of a bin in float32.
    variance_B = (p_BK * (bins_K - mean_B.unsqueeze(1)).square_()).sum(dim=1)
    return mean_B / NUM_BINS, variance_B.sqrt()


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
    """

    image_id: int
    ids: tuple[int, ...]
    statistics: TokenStatistics
    truncated: bool
    stop_margins: tuple[float, ...] = ()
    coord_probs: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)


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

    Returns:
        One sequence a sample, in the order of ``batches``.

    Raises:
        TrainingError: if the model's logits are not finite.
    """
    done: list[GeneratedSequence] = []
    for batch in batches:
        chosen = [samples[index] for index in batch]
        choosers = [] if grammar is None else [GrammarProcessor(grammar.to(model.device))]
        done += _generate_batch(model, chosen, spec=spec, choosers=[*choosers, *processors], curves_of=curves_of)
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
) -> list[GeneratedSequence]:
    device = model.device
    batch = collate(samples, pad_id=spec.pad_id, image_token_id=spec.image_token_id, pad_left=True).to(device)
    has_curves = len(spec.number_ids) == NUM_BINS
    curve_rows = [row for row, sample in enumerate(samples) if has_curves and sample.image_id in curves_of]
    recorder = RawLogitsRecorder(spec.number_ids, markers=spec.markers, curve_rows=curve_rows)
    with _no_inherited_defaults(model), float32_head(model):
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
    return [
        _trimmed(sample.image_id, ids, recorded, row=row, curve=curve_of_row.get(row), spec=spec)
        for row, (sample, ids) in enumerate(zip(samples, answers.tolist(), strict=True))
    ]


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


def _trimmed(
    image_id: int, ids: list[int], recorded: RecordedStatistics, *, row: int, curve: int | None, spec: GenerationSpec
) -> GeneratedSequence:
    """Cut a row at its end token."""
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
