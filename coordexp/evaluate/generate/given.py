"""Answers that another engine or an earlier evaluation wrote: each is read in one forward pass, teacher-forced.

A serving engine writes answers many times faster than a loop over ``generate``, but gives no distribution over 1000
bins. The same checkpoint reads the answers here. One pass over prompt and answer gives every log probability and
distribution that generation would have recorded, up to rounding.

Shapes: B sequences, L padded length, D hidden, T positions that predict a token of an answer, V vocabulary, K bins.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from coordexp.coord_tokens.offset_adapter import inner_model
from coordexp.data.batch import collate
from coordexp.data.dataset import DetectionDataset
from coordexp.data.images.patches import pixel_values
from coordexp.detection.forms.answers import AnswerRecord, images_of, read_answers
from coordexp.detection.names.images import ImageNames
from coordexp.errors import DataError, show
from coordexp.evaluate.generate.answer import Answer, finish_answer, read_raw_logits
from coordexp.evaluate.generate.model import AnsweringModel
from coordexp.model.head_bypass import float32_head, pass_through_head

_CHUNK_ELEMENTS = 16 * 1024 * 1024  # logits that exist at a time


@dataclass(frozen=True)
class GivenAnswer:
    """The answer for an image: its text, or its tokens.

    Attributes:
        image_id: the image.
        text: what was written, special tokens included.
        token_ids: what was written, as ids of this checkpoint's tokenizer; exact, where a text may be tokenised anew.
        finish_reason: ``length`` if the limit came before the end token; ``stop`` or None if the answer is whole.
    """

    image_id: int
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    finish_reason: Literal["stop", "length"] | None = None


@dataclass(frozen=True)
class GivenAnswers:
    """The answers of a file."""

    by_image: Mapping[int, GivenAnswer]  # by image id
    remarks: tuple[str, ...] = ()  # sentences on how their images were found


def read_given_answers(
    path: Path,
    *,
    known: Collection[int],
    wanted: Collection[int],
    names: ImageNames | None = None,
    prefers_text: bool = False,
) -> GivenAnswers:
    """Read a file of answers, one for each image. Answers for images that are known but not wanted are left out.

    Args:
        path: a file in any form that :func:`coordexp.detection.forms.answers.read_answers` knows.
        known: ids of the images of the annotation file.
        wanted: ids of the images that need an answer.
        names: the names of the images' files.
        prefers_text: whether to take the text of a record that has text and token ids, because the ids belong to
            another tokenizer.

    Raises:
        DataError: if a line is something else, or an image is unknown, has two answers, or has none.
    """
    records = read_answers(path)
    images = images_of(records, path, known=known, names=names or ImageNames({}))
    answers: dict[int, GivenAnswer] = {}
    for record, image_id in zip(records, images.image_ids, strict=True):
        if image_id in answers:
            raise DataError(f"{record.place}: a second answer for image {image_id}; expected one an image")
        answers[image_id] = _given_answer(record, image_id, prefers_text=prefers_text)
    missing = sorted(set(wanted) - answers.keys())
    if missing:
        raise DataError(
            f"{path}: no answer for {len(missing)} of {len(wanted)} images, the first of them {missing[0]}; expected a "
            'line for each, with "text": "" where a model wrote nothing'
        )
    return GivenAnswers({image_id: answers[image_id] for image_id in wanted}, images.remarks)


def _given_answer(record: AnswerRecord, image_id: int, *, prefers_text: bool) -> GivenAnswer:
    """Check the types of a record's values."""
    if record.is_cut is None:
        raise DataError(f"{record.place}: finish_reason: got {show(record.finish_reason)}, expected stop or length")
    finish_reason = "length" if record.is_cut else "stop"
    takes_text = record.token_ids is None or (prefers_text and record.text is not None)
    if not takes_text:
        token_ids = record.token_ids
        if not isinstance(token_ids, list):
            raise DataError(f"{record.place}: token_ids: got {show(token_ids)}, expected a list of whole numbers")
        for place, token in enumerate(token_ids):  # pyright: ignore[reportUnknownVariableType]
            if type(token) is not int or abs(token) >= 2**63:  # pyright: ignore[reportUnknownArgumentType]
                raise DataError(f"{record.place}: token_ids.{place}: got {show(token)}, expected a whole number")
        return GivenAnswer(image_id, token_ids=tuple(token_ids), finish_reason=finish_reason)  # pyright: ignore[reportUnknownArgumentType]
    if not isinstance(record.text, str):
        raise DataError(
            f"{record.place}: expected text or token_ids, one of them, for image {image_id}; got {show(record.text)}"
        )
    return GivenAnswer(image_id, text=record.text, finish_reason=finish_reason)


def target_ids(answers: Mapping[int, GivenAnswer], answering: AnsweringModel, *, source: Path) -> dict[int, list[int]]:
    """Turn answers into tokens of the model.

    Args:
        answers: by image id.
        answering: the model that will read them.
        source: their file, for errors.

    Returns:
        The tokens of each answer, by image id. A whole answer ends with the end token.

    Raises:
        DataError: if ids are not the model's, or no text holds the special token that opens an object.
    """
    end_id = answering.answers.end_id
    open_id = answering.answers.open_id
    stop_ids = (end_id, answering.pad_id)
    targets: dict[int, list[int]] = {}
    for image_id, answer in answers.items():
        if answer.token_ids is None:
            ids = answering.tokenizer.encode(answer.text or "", add_special_tokens=False)
        else:
            ids = list(answer.token_ids)
        wrong = next((token for token in ids if not 0 <= token < answering.vocab_size), None)
        if wrong is not None:
            raise DataError(
                f"{source}: image {image_id} has token id {wrong}; the model has ids 0 to {answering.vocab_size - 1}"
            )
        stop = next((position for position, token in enumerate(ids) if token in stop_ids), len(ids))
        is_cut = stop == len(ids) and answer.finish_reason == "length"
        targets[image_id] = ids[:stop] if is_cut else [*ids[:stop], end_id]

    # Engines drop special tokens from a text by default. Then not one object can be read, in any text.
    texts = [image_id for image_id, answer in answers.items() if answer.text]
    if open_id is not None and texts and not any(open_id in targets[image_id] for image_id in texts):
        marker = answering.tokenizer.convert_ids_to_tokens(open_id)
        raise DataError(
            f"{source}: no text holds {marker}, which opens an object: expected texts with their special tokens "
            "(skip_special_tokens=False in vLLM and SGLang), or token_ids"
        )
    return targets


@torch.inference_mode()
def read_batch(
    answering: AnsweringModel,
    samples: DetectionDataset,
    batch: Sequence[int],
    *,
    targets: Mapping[int, Sequence[int]],
    curves_of: Collection[int] = (),
) -> list[Answer]:
    """Read the answers of one batch of images.

    Args:
        answering: the model, in evaluation mode.
        samples: encoded samples with empty targets.
        batch: indices of samples.
        targets: image id -> the tokens of :func:`target_ids`.
        curves_of: image ids whose bin distributions are kept whole.

    Returns:
        The answers as generating them would have recorded them.
    """
    model = answering.model
    prompts = [samples[index] for index in batch]
    chosen = [replace(prompt, target_ids=list(targets[prompt.image_id])) for prompt in prompts]
    inputs = collate(chosen, pad_id=answering.pad_id, image_token_id=answering.image_token_id).to(answering.device)
    with pass_through_head(model):
        hidden_BLD: Tensor = model(
            input_ids=inputs.input_ids,
            attention_mask=inputs.attention_mask,
            mm_token_type_ids=inputs.mm_token_type_ids,
            pixel_values=pixel_values(inputs.patches, answering.image_spec).to(model.dtype),
            image_grid_thw=inputs.image_grid_thw,
            use_cache=False,
        ).logits
    hidden_TD = hidden_BLD.flatten(0, 1).index_select(0, inputs.supervised_rows)
    hidden_per_answer = hidden_TD.split([len(sample.target_ids) for sample in chosen])

    answers: list[Answer] = []
    for sample, answer_hidden_TD in zip(chosen, hidden_per_answer, strict=True):
        values_ST, probs_TK = _read_hidden(answering, answer_hidden_TD, sample.target_ids)
        answer = finish_answer(
            sample.image_id,
            sample.target_ids,
            values_ST,
            stop_ids=(answering.answers.end_id, answering.pad_id),
            probs_TK=probs_TK if sample.image_id in curves_of else None,
        )
        answers.append(answer)
    return answers


def _read_hidden(
    answering: AnsweringModel, hidden_TD: Tensor, target_ids: Sequence[int]
) -> tuple[Tensor, Tensor | None]:
    """Return the statistics and distributions of an answer, on the CPU.

    Hidden states are projected chunk by chunk: all logits ``[T, V]`` at once could take more memory than the model.
    """
    head = inner_model(answering.model).get_output_embeddings()
    assert head is not None, "pass_through_head refuses a model without a head"
    targets_T = torch.tensor(target_ids, dtype=torch.int64, device=hidden_TD.device)
    chunk_size = max(1, _CHUNK_ELEMENTS // answering.vocab_size)
    values: list[Tensor] = []
    probs: list[Tensor] = []
    with float32_head(answering.model):
        for hidden_ND, target_N in zip(hidden_TD.split(chunk_size), targets_T.split(chunk_size), strict=True):
            values_SN, p_NK = read_raw_logits(head(hidden_ND).float(), target_N, answering.answers.number_ids)
            values.append(values_SN)
            if p_NK is not None:
                probs.append(p_NK)
    return torch.cat(values, dim=1).cpu(), torch.cat(probs).cpu() if probs else None
