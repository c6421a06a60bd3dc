"""Greedy generation that keeps, per token, what scores and expected boxes need.

Answers are of very different lengths, so a queue of images passes through a fixed number of rows: where an answer ends,
the next image begins (:mod:`coordexp.evaluate.generate.rows`).

Shapes: D hidden, L padded length, N rows that begin.
"""

import itertools
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

_BATCHES_A_QUEUE = 2  # longer queues keep rows busier where answers are not as expected, shorter ones share out better
_REFILLS = 4  # prompts are read when so large a share of the rows is free: a forward pass for each would cost more
_LOOK_EVERY = {"cpu": 1}  # steps from one look at which answers have ended to the next, by device
_LOOK_ELSEWHERE = 4  # the host waits for a device at each look


def image_queues(lengths: Sequence[int], *, expected: Sequence[int], batch_size: int) -> list[list[int]]:
    """Cut samples into queues of alike answers, the longest first, so that no row waits long for another one.

    Queues depend on the data alone. Processes that share the work take whole queues, so that each image meets the same
    neighbours, and the same rounding, however many processes there are.

    ``lengths``: tokens of each prompt; where answers are alike, prompts of alike lengths are read together.
    ``expected``: what is known of the length of each answer, in any unit, such as the objects that are there.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-expected[index], -lengths[index]))
    num_queues = -(-len(order) // (_BATCHES_A_QUEUE * batch_size))
    ends = [len(order) * number // max(1, num_queues) for number in range(num_queues + 1)]
    return [order[start:end] for start, end in itertools.pairwise(ends)]


def prompts_at_once(num_rows: int) -> int:
    """Return how many prompts are read in one forward pass, and how many rows are free before any is."""
    return -(-num_rows // _REFILLS)


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
    """Generate greedily for the images of one queue; returns their answers in the order in which they ended.

    Args:
        answering: the model, in evaluation mode.
        samples: encoded samples with empty targets; read once each, as rows become free.
        queue: indices of samples, see :func:`image_queues`.
        grammar: constrains the answers, on the model's device; None for free decoding.
        batch_size: rows.
        max_new_tokens: length limit of an answer, the end token included.
        curves_of: image ids whose bin distributions are kept whole.
        on_images: called with the number of images just finished.
    """
    owner = inner_model(answering.model)
    assert isinstance(owner, PreTrainedModel)
    recurrent = family_of(owner.config.model_type, where="the model").recurrent
    new_rows = partial(AnswerRows, answering=answering, grammar=grammar, max_new_tokens=max_new_tokens)
    encoded = (samples[index] for index in queue)  # read as rows become free
    answers = (answers_of_batches if recurrent else _answers_of_rows)(
        owner,
        answering,
        encoded,
        new_rows,
        num_samples=len(queue),
        num_rows=min(batch_size, len(queue)),
        curves_of=curves_of,
    )
    found: list[Answer] = []
    for ended in answers:
        found += ended
        if on_images is not None:
            on_images(len(ended))
    return found


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
    """Pass samples through rows that are given on; yields answers as they end."""
    reattach_coord_offset_hooks(owner)  # its own forward pass, which would, is not called
    core, head = owner.base_model, owner.get_output_embeddings()
    assert isinstance(core, PreTrainedModel)
    assert head is not None
    # accelerate puts bfloat16 around the forward pass of a model that trains whole; here is called what is inside.
    half = torch.autocast(core.device.type, torch.bfloat16, enabled="_original_forward" in vars(owner))
    language_model = core.get_submodule("language_model")
    assert isinstance(language_model, PreTrainedModel)
    rows = new_rows(num_rows)

    def begin(chosen: Sequence[EncodedSample]) -> None:
        """Read the prompts of some samples, and choose their first tokens."""
        batch = collate(chosen, pad_id=answering.pad_id, image_token_id=answering.image_token_id)
        ends = [row * batch.input_ids.shape[1] + sample.length - 1 for row, sample in enumerate(chosen)]
        batch = (batch.pin_memory() if core.device.type == "cuda" else batch).to(core.device, non_blocking=True)
        # No token sees what comes behind it: padding on the right needs no mask, and attention has its fastest kernel.
        with half:
            outputs = core(
                input_ids=batch.input_ids,
                mm_token_type_ids=batch.mm_token_type_ids,
                pixel_values=pixel_values(batch.patches, answering.image_spec).to(core.dtype),
                image_grid_thw=batch.image_grid_thw,
                use_cache=True,
            )
        hidden_ND = outputs.last_hidden_state.flatten(0, 1).index_select(0, upload(torch.tensor(ends), core.device))
        deltas = core.rope_deltas  # how much further the position behind a prompt is than its length
        assert isinstance(deltas, torch.Tensor)
        lengths = [sample.length for sample in chosen]
        begun = rows.begin(
            [sample.image_id for sample in chosen],
            cache_of(outputs),
            lengths=lengths,
            positions=[length + delta for length, delta in zip(lengths, deltas.flatten().tolist(), strict=True)],
            keep_probs=[sample.image_id in curves_of for sample in chosen],
        )
        with float32_head(answering.model):
            rows.choose(head(hidden_ND), begun)

    num_waiting, at_once = num_samples, prompts_at_once(num_rows)
    every = _LOOK_EVERY.get(core.device.type, _LOOK_ELSEWHERE)
    for step in itertools.count(1):
        while num_waiting and len(rows.free) >= (number := min(at_once, num_waiting)):
            begin(list(itertools.islice(samples, number)))
            num_waiting -= number
        if not rows.used:
            break
        if not num_waiting and 2 * len(rows.used) <= len(rows):
            rows.keep_used()
        with half, row_attention(language_model):
            hidden_BD = core(**rows.next_inputs()).last_hidden_state[:, 0]
        with float32_head(answering.model):
            rows.choose(head(hidden_BD))
        if step % every == 0 and (ended := rows.ended()):
            yield rows.take(ended)
