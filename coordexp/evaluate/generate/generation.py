"""Greedy generation that keeps, per token, what scores and expected boxes need.

Answers are of very different lengths, so a queue of images passes through a fixed number of rows: where an answer ends,
the next image begins (:mod:`coordexp.evaluate.generate.rows`).

Shapes: K bins, L padded length, D hidden, N rows that begin, T generated tokens.
"""

import contextlib
import itertools
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel, Qwen3VLForConditionalGeneration

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.grammar.constrain import ObjectGrammar
from coordexp.coord_tokens.offset_adapter import inner_model, reattach_coord_offset_hooks
from coordexp.data.batch import EncodedSample, collate, padded_positions
from coordexp.data.patches import pixel_values, upload
from coordexp.errors import TrainingError
from coordexp.evaluate.generate.rows import (
    AnswerRows,
    EndedAnswer,
    GenerationSpec,
    row_attention,
)
from coordexp.evaluate.generate.token_statistics import RecordedStatistics, TokenStatistics
from coordexp.model.head_bypass import float32_head

_BATCHES_A_QUEUE = 2  # longer queues keep rows busier where answers are not as expected, shorter ones share out better
_REFILLS = 4  # prompts are read when so large a share of the rows is free: a forward pass for each would cost more
_LOOK_EVERY = {"cpu": 1}  # steps from one look at which answers have ended to the next, by device
_LOOK_ELSEWHERE = 4  # the host waits for a device at each look


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


@dataclass(frozen=True)
class GeneratedSequence:
    """What was generated for one image, the end token excluded; one entry a token.

    Attributes:
        image_id: id in the annotation file.
        ids: generated token ids.
        statistics: what is kept of each token.
        truncated: the length limit came before the end token.
        coord_probs: ``[T, K]`` float32 bin distributions, where they were asked for and there are any.
        unforced: written under a grammar that never forbade what the model preferred, so that free decoding writes the
            same.
    """

    image_id: int
    ids: tuple[int, ...]
    statistics: TokenStatistics
    truncated: bool
    coord_probs: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    unforced: bool = False


def image_queues(lengths: Sequence[int], *, expected: Sequence[int], batch_size: int) -> list[list[int]]:
    """Cut samples into queues of alike answers, the longest first, so that no row waits long for another one.

    Queues depend on the data alone. Processes that share the work take whole queues, so that each image meets the same
    neighbours, and the same rounding, however many processes there are.

    Args:
        lengths: tokens of each prompt; where answers are alike, prompts of alike lengths are read together.
        expected: what is known of the length of each answer, in any unit, such as the objects that are there.
        batch_size: samples that are answered at a time.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-expected[index], -lengths[index]))
    num_queues = -(-len(order) // (_BATCHES_A_QUEUE * batch_size))
    ends = [len(order) * number // max(1, num_queues) for number in range(num_queues + 1)]
    return [order[start:end] for start, end in itertools.pairwise(ends)]


def prompts_at_once(num_rows: int) -> int:
    """Return how many prompts are read in one forward pass, and how many rows are free before any is."""
    return -(-num_rows // _REFILLS)


def generate_sequences(
    model: PreTrainedModel | PeftModel,
    samples: EncodedSamples,
    *,
    spec: GenerationSpec,
    grammar: ObjectGrammar | None,
    queues: Sequence[Sequence[int]],
    batch_size: int,
    curves_of: Collection[int] = (),
    on_images: Callable[[int], None] | None = None,
) -> list[GeneratedSequence]:
    """Generate greedily, queue by queue.

    Args:
        model: an evaluation-mode Qwen3-VL; its own generation defaults are ignored.
        samples: encoded samples with empty targets; read once each, as rows become free.
        spec: limits, and what the tokens are.
        grammar: constrains the output; None for free decoding.
        queues: samples that pass through the same rows, see :func:`image_queues`.
        batch_size: rows.
        curves_of: image ids whose bin distributions are kept whole.
        on_images: called with the number of images just finished.

    Returns:
        One sequence a sample, in the order of ``queues``.

    Raises:
        TrainingError: if the model's logits are not finite.
    """
    grammar = None if grammar is None else grammar.to(model.device)
    done: list[GeneratedSequence] = []
    for queue in queues:
        num_rows = min(batch_size, len(queue))
        rows = AnswerRows(num_rows, spec=spec, grammar=grammar, device=model.device)
        writer = _Writer(model, samples, rows, spec=spec, curves_of=curves_of)
        found: dict[int, GeneratedSequence] = {}
        for ended in writer.answers(queue):
            found |= ended
            if on_images is not None:
                on_images(len(ended))
        done += [found[index] for index in queue]
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


class _Writer:
    """Reads the prompts of a queue into rows as they become free, and writes a token of each row at a step."""

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        samples: EncodedSamples,
        rows: AnswerRows,
        *,
        spec: GenerationSpec,
        curves_of: Collection[int],
    ) -> None:
        owner = inner_model(model)
        assert isinstance(owner, Qwen3VLForConditionalGeneration)
        reattach_coord_offset_hooks(owner)  # its own forward pass, which would, is not called
        head = owner.get_output_embeddings()
        assert head is not None
        self._model, self._core, self._head = model, owner.model, head
        # accelerate puts bfloat16 around the forward pass of a model that trains whole; here is called what is inside.
        wrapped = "_original_forward" in vars(owner)
        self._autocast = torch.autocast(self._core.device.type, torch.bfloat16, enabled=wrapped)
        self._samples, self._rows, self._spec = samples, rows, spec
        self._curves_of = curves_of if len(spec.number_ids) == NUM_BINS else ()
        self._image_ids: dict[int, int] = {}

    def answers(self, queue: Sequence[int]) -> Generator[dict[int, GeneratedSequence]]:
        """Answer the samples of a queue; yields those that have ended, as they end."""
        rows, waiting, num_steps = self._rows, list(reversed(queue)), 0
        group = prompts_at_once(len(rows))
        every = _LOOK_EVERY.get(self._core.device.type, _LOOK_ELSEWHERE)
        while waiting or rows.used:
            while waiting and len(rows.free) >= min(group, len(waiting)):
                self._begin([waiting.pop() for _ in range(min(group, len(waiting)))])
            if not waiting and 2 * len(rows.used) <= len(rows):
                rows.keep_used()
            self._step()
            num_steps += 1
            if num_steps % every == 0 and (ended := rows.ended()):
                yield {one.sample: self._sequence(one) for one in rows.take(ended)}

    @torch.inference_mode()
    def _step(self) -> None:
        """Write a token of each row."""
        with self._autocast, row_attention(self._core.language_model):
            hidden_BD = self._core(**self._rows.next_inputs()).last_hidden_state[:, 0]
        with float32_head(self._model):
            self._rows.choose(self._head(hidden_BD))

    def _begin(self, indices: Sequence[int]) -> None:
        """Read the prompts of some samples, and choose their first tokens."""
        samples = [self._samples[index] for index in indices]
        self._read(indices, samples)
        self._image_ids |= {index: sample.image_id for index, sample in zip(indices, samples, strict=True)}

    @torch.inference_mode()
    def _read(self, indices: Sequence[int], samples: Sequence[EncodedSample]) -> None:
        spec, device = self._spec, self._core.device
        batch = collate(samples, pad_id=spec.pad_id, image_token_id=spec.image_token_id)
        merge_size = spec.image_spec.merge_size
        positions_3NL = padded_positions(samples, image_token_id=spec.image_token_id, merge_size=merge_size)
        ends = [row * batch.input_ids.shape[1] + sample.length - 1 for row, sample in enumerate(samples)]
        batch = (batch.pin_memory() if device.type == "cuda" else batch).to(device, non_blocking=True)
        # No token sees what comes behind it: padding on the right needs no mask, and attention has its fastest kernel.
        with self._autocast:
            outputs = self._core(
                input_ids=batch.input_ids,
                position_ids=upload(positions_3NL, device),
                mm_token_type_ids=batch.mm_token_type_ids,
                pixel_values=pixel_values(batch.patches, spec.image_spec).to(self._core.dtype),
                image_grid_thw=batch.image_grid_thw,
                use_cache=True,
            )
        hidden_ND = outputs.last_hidden_state.flatten(0, 1).index_select(0, upload(torch.tensor(ends), device))
        rows = self._rows.begin(
            indices,
            outputs.past_key_values,
            lengths=[sample.length for sample in samples],
            positions=(positions_3NL.amax(dim=(0, 2)) + 1).tolist(),
            keep_probs=[sample.image_id in self._curves_of for sample in samples],
        )
        with float32_head(self._model):
            self._rows.choose(self._head(hidden_ND), rows)

    def _sequence(self, ended: EndedAnswer) -> GeneratedSequence:
        seq = trimmed(self._image_ids.pop(ended.sample), ended.ids, ended.recorded, spec=self._spec)
        return replace(seq, unforced=ended.unforced)


def trimmed(image_id: int, ids: list[int], recorded: RecordedStatistics, *, spec: GenerationSpec) -> GeneratedSequence:
    """Cut tokens, and what was recorded of them, at the end token; without one the answer was cut.

    Raises:
        TrainingError: if the model's logits are not finite.
    """
    length = next((at for at, token in enumerate(ids) if token in (spec.end_id, spec.pad_id)), len(ids))
    if not recorded.values_ST[:, : length + 1].isfinite().all():
        raise TrainingError(
            f"image {image_id}: the model's logits are not finite; expected the logits of a model that did not diverge"
        )
    return GeneratedSequence(
        image_id=image_id,
        ids=tuple(ids[:length]),
        statistics=TokenStatistics(*map(tuple, recorded.values_ST[:, :length].tolist())),
        truncated=length == len(ids),
        coord_probs=None if recorded.probs_TK is None else recorded.probs_TK[:length].numpy(),
    )
