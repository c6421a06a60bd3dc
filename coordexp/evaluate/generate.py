"""Batched greedy generation that keeps, per token, what scores and expected boxes need.

Shapes: B sequences, L tokens so far, V vocabulary, K bins, T generated tokens.
"""

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from coordexp.coord_tokens.expectation import expected_values
from coordexp.coord_tokens.vocab import CoordVocab
from coordexp.data.collate import EncodedSample, collate
from coordexp.data.image import ImageSpec, pixel_values
from coordexp.errors import TrainingError
from coordexp.evaluate.grammar import GrammarProcessor, ObjectGrammar
from coordexp.model.head_bypass import float32_head

Progress = Callable[[int, int], None]


class Samples(Protocol):
    """What is evaluated: a list of encoded samples, or a data set that encodes on access."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int, /) -> EncodedSample:
        """Return one sample with empty ``target_ids``."""
        ...


class _Generates(Protocol):
    """``generate`` as PreTrainedModel and PeftModel both have it, and as their annotations do not say."""

    def generate(self, **inputs: object) -> Tensor: ...


@dataclass(frozen=True)
class GeneratedSequence:
    """What was generated for one image, the end token excluded; one entry a token.

    Attributes:
        image_id: id in the annotation file.
        ids: generated token ids.
        log_probs: log probability of each, from raw logits over the full vocabulary.
        expected: expected coordinate at each position, as a fraction of the image side.
        coord_mass: total probability of the coord vocabulary at each position.
        truncated: the length limit came before the end token.
    """

    image_id: int
    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    expected: tuple[float, ...]
    coord_mass: tuple[float, ...]
    truncated: bool


@dataclass(frozen=True)
class GenerationSpec:
    """How to generate.

    Attributes:
        batch_size: sequences generated together.
        max_new_tokens: length limit of an answer, the end token included.
        pad_id: fills short prompts on the left, and answers behind their end.
        image_token_id: the placeholder of an image patch in the prompt.
        image_spec: how patches become pixel values.
    """

    batch_size: int
    max_new_tokens: int
    pad_id: int
    image_token_id: int
    image_spec: ImageSpec


class RawLogitsRecorder(LogitsProcessor):
    """Reads the raw logits of every step of one ``generate`` call; first in the list, changes nothing.

    Which token is emitted is known only at the next call, so one ``[B, V]`` is kept until then;
    of earlier steps only scalars a row remain, on the device.
    """

    def __init__(self, coord_ids: range) -> None:
        """Record for the coord vocabulary ``coord_ids``."""
        self._coords = slice(coord_ids.start, coord_ids.stop)
        self._pending: tuple[Tensor, Tensor] | None = None
        self._log_probs: list[Tensor] = []
        self._expected: list[Tensor] = []
        self._coord_mass: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Record a step; ``scores`` ``[B, V]`` is returned as it came."""
        self._settle(input_ids)
        logits_BV = scores.float()
        total_B = logits_BV.logsumexp(dim=1)
        coord_BK = logits_BV[:, self._coords]
        self._expected.append(expected_values(coord_BK))
        self._coord_mass.append((coord_BK.logsumexp(dim=1) - total_B).exp())
        self._pending = (logits_BV, total_B)
        return scores

    def finish(self, sequences_BL: Tensor, *, num_steps: int) -> Tensor:
        """Return ``[3, B, T]`` float32 on the CPU: log probabilities, expected values, coord mass."""
        self._settle(sequences_BL)
        series = (self._log_probs, self._expected, self._coord_mass)
        return torch.stack([torch.stack(steps[:num_steps], dim=1) for steps in series]).cpu()

    def _settle(self, input_ids: Tensor) -> None:
        if self._pending is not None:
            logits_BV, total_B = self._pending
            self._log_probs.append(logits_BV.gather(1, input_ids[:, -1:]).squeeze(1) - total_B)
            self._pending = None


def generate_sequences(
    model: PreTrainedModel | PeftModel,
    samples: Samples,
    *,
    vocab: CoordVocab,
    spec: GenerationSpec,
    grammar: ObjectGrammar | None,
    indices: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
    on_batch: Callable[[int], None] | None = None,
) -> list[GeneratedSequence]:
    """Generate greedily for every sample, alike lengths together.

    Args:
        model: an evaluation-mode model; its own generation defaults are ignored.
        samples: encoded samples with empty targets; read once each, batch by batch.
        vocab: ids of markers and coord tokens.
        spec: batch size, limits and padding.
        grammar: constrains the output; None for free decoding.
        indices: which samples; None for all.
        lengths: expected length of each of ``samples``, to batch alike ones; None: their order is kept.
        on_batch: called with the number of images just finished.

    Returns:
        One sequence a sample, in the order of ``indices``.

    Raises:
        TrainingError: if the model's logits are not finite.
    """
    wanted = list(range(len(samples))) if indices is None else list(indices)
    order = wanted if lengths is None else sorted(wanted, key=lambda index: -lengths[index])
    done: dict[int, GeneratedSequence] = {}
    for at in range(0, len(order), spec.batch_size):
        chunk = order[at : at + spec.batch_size]
        sequences = _generate_batch(model, [samples[index] for index in chunk], vocab=vocab, spec=spec, grammar=grammar)
        done.update(zip(chunk, sequences, strict=True))
        if on_batch is not None:
            on_batch(len(chunk))
    return [done[index] for index in wanted]


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
    vocab: CoordVocab,
    spec: GenerationSpec,
    grammar: ObjectGrammar | None,
) -> list[GeneratedSequence]:
    device = model.device
    batch = collate(samples, pad_id=spec.pad_id, image_token_id=spec.image_token_id, pad_left=True)
    prompts = batch["input_ids"].to(device)
    recorder = RawLogitsRecorder(vocab.coord_ids)
    processors = LogitsProcessorList([recorder])
    if grammar is not None:
        processors.append(GrammarProcessor(grammar.to(device)))
    with _no_inherited_defaults(model), float32_head(model):
        sequences = cast(_Generates, model).generate(
            input_ids=prompts,
            attention_mask=batch["attention_mask"].to(device),
            mm_token_type_ids=batch["mm_token_type_ids"].to(device),
            pixel_values=pixel_values(batch["patches"].to(device), spec.image_spec).to(model.dtype),
            image_grid_thw=batch["image_grid_thw"].to(device),
            logits_processor=processors,
            generation_config=_greedy(vocab, spec),
        )
    answers = sequences[:, prompts.shape[1] :]
    record = recorder.finish(sequences, num_steps=answers.shape[1])
    ends = {vocab.end_id, spec.pad_id}
    return [
        _trimmed(sample.image_id, ids, record[:, row], ends=ends)
        for row, (sample, ids) in enumerate(zip(samples, answers.tolist(), strict=True))
    ]


def _greedy(vocab: CoordVocab, spec: GenerationSpec) -> GenerationConfig:
    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=spec.max_new_tokens,
        # Qwen's padding token is its end-of-text: behind it nothing but padding can follow.
        eos_token_id=sorted({vocab.end_id, spec.pad_id}),
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


def _trimmed(image_id: int, ids: list[int], record_3T: Tensor, *, ends: set[int]) -> GeneratedSequence:
    length = next((at for at, token in enumerate(ids) if token in ends), len(ids))
    if not bool(record_3T[:, : length + 1].isfinite().all()):
        raise TrainingError(
            f"image {image_id}: the model's logits are not finite; expected the logits of a model that did not diverge"
        )
    log_probs, expected, coord_mass = (tuple(values) for values in record_3T[:, :length].tolist())
    return GeneratedSequence(
        image_id=image_id,
        ids=tuple(ids[:length]),
        log_probs=log_probs,
        expected=expected,
        coord_mass=coord_mass,
        truncated=length == len(ids),
    )
