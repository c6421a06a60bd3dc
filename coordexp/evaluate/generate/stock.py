"""Greedy generation by transformers' own ``generate``, for models whose cache cannot drop and add rows.

Such a model has layers that carry a state from token to token. Padding on the right would get into the state, so
prompts are padded on the left. A batch waits for its longest answer. That is slower than the rows of :mod:`.rows`, and
gives the same answers.

Shapes: B prompts, L padded length, V vocabulary.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from coordexp.data.batch import EncodedSample, collate
from coordexp.data.images.patches import pixel_values
from coordexp.evaluate.generate.answer import Answer
from coordexp.evaluate.generate.model import AnsweringModel
from coordexp.evaluate.generate.rows import AnswerRows
from coordexp.model.head_bypass import float32_head


class _Chooser(LogitsProcessor):
    """Has :class:`AnswerRows` choose and record each token, and leaves ``generate`` no other choice."""

    def __init__(self, rows: AnswerRows) -> None:
        self._rows = rows

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return ``[B, V]`` logits of which one in each row is finite, from raw logits ``[B, V]``."""
        chosen_B = self._rows.choose(scores)
        self._rows.end_step()
        return torch.full_like(scores, -torch.inf).scatter_(1, chosen_B.unsqueeze(1), 0.0)


def answers_of_batches(
    owner: PreTrainedModel,
    answering: AnsweringModel,
    samples: Iterator[EncodedSample],
    new_rows: Callable[[int], AnswerRows],
    *,
    num_samples: int,
    num_rows: int,
    curves_of: Collection[int],
) -> Iterator[list[Answer]]:
    """Answer samples batch by batch; yields the answers of each batch.

    Args:
        owner: the unwrapped model.
        answering: the model with all that belongs to it.
        samples: encoded samples with empty targets.
        new_rows: returns this many empty rows.
        num_samples: how many samples there are.
        num_rows: samples in a batch.
        curves_of: image ids whose bin distributions are kept whole.
    """
    assert isinstance(owner, GenerationMixin)
    for _ in range(0, num_samples, num_rows):
        chosen = list(itertools.islice(samples, num_rows))
        rows = new_rows(len(chosen))
        settings = GenerationConfig(
            max_new_tokens=rows.limit,
            do_sample=False,
            eos_token_id=[answering.answers.end_id, answering.pad_id],
            pad_token_id=answering.pad_id,
        )
        rows.begin(
            [sample.image_id for sample in chosen],
            None,
            lengths=[sample.length for sample in chosen],
            positions=[0] * len(chosen),
            keep_probs=[sample.image_id in curves_of for sample in chosen],
        )
        with float32_head(answering.model):
            # The annotation of generate asks for a protocol that transformers' own models do not meet.
            owner.generate(  # pyright: ignore[reportAttributeAccessIssue]
                **_left_padded(chosen, answering),
                generation_config=settings,
                logits_processor=LogitsProcessorList([_Chooser(rows)]),
            )
        yield rows.take(rows.used)


def _left_padded(samples: Sequence[EncodedSample], answering: AnsweringModel) -> dict[str, Tensor]:
    """Return the inputs of ``generate``, padded on the left."""
    batch = collate(samples, pad_id=answering.pad_id, image_token_id=answering.image_token_id).to(answering.device)
    assert batch.attention_mask is not None
    length = batch.input_ids.shape[1]

    def rolled(table_BL: Tensor) -> Tensor:
        """Move the padding of each row from its end to its front."""
        return torch.stack([row.roll(length - sample.length) for row, sample in zip(table_BL, samples, strict=True)])

    return {
        "input_ids": rolled(batch.input_ids),
        "attention_mask": rolled(batch.attention_mask),
        "mm_token_type_ids": rolled(batch.mm_token_type_ids),
        "pixel_values": pixel_values(batch.patches, answering.image_spec).to(answering.model.dtype),
        "image_grid_thw": batch.image_grid_thw,
    }
