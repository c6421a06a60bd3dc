"""Greedy generation that records, for each token, what scores and expected boxes need.

Answers differ much in length, so a queue of images passes through a fixed number of rows: when an answer ends, the next
image begins in its row (:mod:`coordexp.evaluate.generate.rows`).

Shapes: B rows, D hidden, L padded length, N rows that begin.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import torch
from transformers import PreTrainedModel

from coordexp.coord_tokens.grammar.constrain import ObjectGrammar
from coordexp.coord_tokens.offset_adapter import inner_model, reattach_coord_offset_hooks
from coordexp.data.batch import EncodedSample, collate
from coordexp.data.dataset import DetectionDataset
from coordexp.data.images.patches import pixel_values, upload
from coordexp.evaluate.generate.answer import Answer
from coordexp.evaluate.generate.model import AnsweringModel
from coordexp.evaluate.generate.row_cache import cache_of, row_attention
from coordexp.evaluate.generate.rows import AnswerRows
from coordexp.evaluate.generate.stock import answers_of_batches
from coordexp.model.families import family_of
from coordexp.model.head_bypass import float32_head

# Images in a queue, in batches. Longer queues keep rows busier if answers are not as long as expected; shorter queues
# are shared more evenly between processes.
_BATCHES_A_QUEUE = 2
_REFILLS = 4  # refill when at least 1/4 of the rows are free: a forward pass for each prompt alone would cost more
# Steps between two looks at which answers have ended, by device. At each look the host waits for the device, which
# costs nothing on a CPU.
_LOOK_EVERY = {"cpu": 1}
_LOOK_ELSEWHERE = 4


def image_queues(lengths: Sequence[int], *, expected: Sequence[int], batch_size: int) -> list[list[int]]:
    """Cut samples into queues of answers that are about equally long, the longest first: no row waits long for another.

    Queues depend on the data alone. Processes that share the work take whole queues, so each image has the same
    neighbours, and the same rounding, for any number of processes.

    Args:
        lengths: tokens of each prompt; among equally long answers, prompts of similar length come together.
        expected: what is known about the length of each answer, in any unit, such as its number of objects.
        batch_size: rows.

    Returns:
        Indices of samples.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-expected[index], -lengths[index]))
    num_queues = math.ceil(len(order) / (_BATCHES_A_QUEUE * batch_size))
    ends = [len(order) * number // max(1, num_queues) for number in range(num_queues + 1)]
    return [order[start:end] for start, end in itertools.pairwise(ends)]


def prompts_at_once(num_rows: int) -> int:
    """Return how many prompts one forward pass reads: as many as rows must be free before it."""
    return math.ceil(num_rows / _REFILLS)


@torch.inference_mode()
def generate_queue(
    answering: AnsweringModel,
    samples: DetectionDataset,
    queue: Sequence[int],
    *,
    grammar: ObjectGrammar | None,
    batch_size: int,
    max_new_tokens: int,
    curves_of: Collection[int] = (),
    on_images: Callable[[int], None] | None = None,
) -> list[Answer]:
    """Generate greedily for the images of one queue.

    Args:
        answering: the model, in evaluation mode.
        samples: encoded samples with empty targets; each is read once, when a row becomes free.
        queue: indices of samples, see :func:`image_queues`.
        grammar: constrains the answers, on the model's device; None for free decoding.
        batch_size: rows.
        max_new_tokens: length limit of an answer, the end token included.
        curves_of: image ids whose bin distributions are kept whole.
        on_images: called with the number of images just finished.

    Returns:
        The answers, in the order in which they ended.
    """
    owner = inner_model(answering.model)
    assert isinstance(owner, PreTrainedModel)
    is_recurrent = family_of(owner.config.model_type, where="the model").recurrent
    generate = answers_of_batches if is_recurrent else _answers_of_rows
    answers_as_they_end = generate(
        owner,
        answering,
        (samples[index] for index in queue),
        partial(AnswerRows, answering=answering, grammar=grammar, max_new_tokens=max_new_tokens),
        num_samples=len(queue),
        num_rows=min(batch_size, len(queue)),
        curves_of=curves_of,
    )
    answers: list[Answer] = []
    for ended in answers_as_they_end:
        answers += ended
        if on_images is not None:
            on_images(len(ended))
    return answers


def _answers_of_rows(
    owner: PreTrainedModel,
    answering: AnsweringModel,
    samples: Iterator[EncodedSample],
    new_rows: Callable[[int], AnswerRows],
    *,
    num_samples: int,
    num_rows: int,
    curves_of: Collection[int],
) -> Iterator[list[Answer]]:
    """Pass samples through rows that take the next image when an answer ends; yields answers as they end.

    Args:
        owner: the unwrapped model.
        answering: the model with all that belongs to it.
        samples: encoded samples with empty targets.
        new_rows: returns this many empty rows.
        num_samples: how many samples there are.
        num_rows: rows.
        curves_of: image ids whose bin distributions are kept whole.
    """
    rows = new_rows(num_rows)
    model = _ModelInRows(owner, answering, rows, curves_of=curves_of)
    num_waiting = num_samples
    look_every = _LOOK_EVERY.get(model.device.type, _LOOK_ELSEWHERE)
    for step in itertools.count(1):
        num_next = min(prompts_at_once(num_rows), num_waiting)
        while num_waiting and len(rows.free) >= num_next:
            model.begin(list(itertools.islice(samples, num_next)))
            num_waiting -= num_next
            num_next = min(num_next, num_waiting)
        if not rows.used:
            break
        if not num_waiting and 2 * len(rows.used) <= len(rows):
            rows.keep_used()
        model.step()
        if step % look_every == 0:
            ended = rows.ended()
            if ended:
                yield rows.take(ended)


class _ModelInRows:
    """Reads prompts into rows, and predicts the next token of every row."""

    def __init__(
        self, owner: PreTrainedModel, answering: AnsweringModel, rows: AnswerRows, *, curves_of: Collection[int]
    ) -> None:
        reattach_coord_offset_hooks(owner)  # the owner's forward pass would do it, and is not called here
        core = owner.base_model
        head = owner.get_output_embeddings()
        assert isinstance(core, PreTrainedModel)
        assert head is not None
        language_model = core.get_submodule("language_model")
        assert isinstance(language_model, PreTrainedModel)
        self.device = core.device
        self._core = core
        self._head = head
        self._language_model = language_model
        self._answering = answering
        self._rows = rows
        self._curves_of = curves_of
        # If a model trains whole, accelerate wraps its forward pass in bfloat16 autocast. The core is called without
        # that wrapper here, and needs the same.
        self._half = torch.autocast(core.device.type, torch.bfloat16, enabled="_original_forward" in vars(owner))

    def begin(self, samples: Sequence[EncodedSample]) -> None:
        """Read the prompts of some samples into free rows, and choose their first tokens."""
        answering = self._answering
        batch = collate(samples, pad_id=answering.pad_id, image_token_id=answering.image_token_id)
        last_N = torch.tensor(
            [row * batch.input_ids.shape[1] + sample.length - 1 for row, sample in enumerate(samples)]
        )
        if self.device.type == "cuda":
            batch = batch.pin_memory()
        batch = batch.to(self.device, non_blocking=True)
        # Attention is causal: padding on the right needs no mask, and without one attention has its fastest kernel.
        with self._half:
            outputs = self._core(
                input_ids=batch.input_ids,
                mm_token_type_ids=batch.mm_token_type_ids,
                pixel_values=pixel_values(batch.patches, answering.image_spec).to(self._core.dtype),
                image_grid_thw=batch.image_grid_thw,
                use_cache=True,
            )
        hidden_ND = outputs.last_hidden_state.flatten(0, 1).index_select(0, upload(last_N, self.device))
        # An image takes fewer rotary positions than tokens, so the position after a prompt is not its length.
        deltas = self._core.rope_deltas
        assert isinstance(deltas, torch.Tensor)
        lengths = [sample.length for sample in samples]
        begun = self._rows.begin(
            [sample.image_id for sample in samples],
            cache_of(outputs),
            lengths=lengths,
            positions=[length + delta for length, delta in zip(lengths, deltas.flatten().tolist(), strict=True)],
            keep_probs=[sample.image_id in self._curves_of for sample in samples],
        )
        with float32_head(answering.model):
            self._rows.choose(self._head(hidden_ND), begun)

    def step(self) -> None:
        """Predict and choose the next token of every row."""
        with self._half, row_attention(self._language_model):
            hidden_BD = self._core(**self._rows.next_inputs()).last_hidden_state[:, 0]
        with float32_head(self._answering.model):
            self._rows.choose(self._head(hidden_BD))
