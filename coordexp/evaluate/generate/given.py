"""Answers that another engine wrote, or an earlier evaluation: each is read in one forward pass, teacher-forced.

A serving engine writes answers many times faster than a loop over ``generate``, but gives no distribution over 1000
bins. The same checkpoint reads them here: every log probability and distribution of an answer comes from one
pass over prompt and answer, as generation would have recorded them, to rounding.

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
from coordexp.data.patches import pixel_values
from coordexp.detection.boxes import Integer
from coordexp.errors import DataError
from coordexp.evaluate.generate.answer import Answer, finish_answer, read_raw_logits
from coordexp.evaluate.generate.model import AnsweringModel
from coordexp.files import read_json_lines
from coordexp.model.head_bypass import float32_head, pass_through_head

_CHUNK_ELEMENTS = 16 * 1024 * 1024  # of the logits that exist at a time


@dataclass(frozen=True)
class GivenAnswer:
    """One line of a file of answers: ``{"image_id": 7, "text": "..."}``, or ``token_ids`` instead of ``text``.

    Attributes:
        text: what was written, special tokens included.
        token_ids: the same as the ids of this checkpoint's tokenizer, which are exact.
        finish_reason: ``length``: the limit came before the end token; ``stop``, or absent: the answer is whole.
    """

    image_id: Integer
    text: str | None = None
    token_ids: tuple[Integer, ...] | None = None
    finish_reason: Literal["stop", "length"] | None = None


def read_given_answers(path: Path, *, known: Collection[int], wanted: Collection[int]) -> dict[int, GivenAnswer]:
    """Read a file of answers, one image a line; those of images that are known but not wanted are left out.

    Raises:
        DataError: if a line is something else, or an image is unknown, there twice, or missing.
    """
    found: dict[int, GivenAnswer] = {}
    for number, answer in enumerate(read_json_lines(GivenAnswer, path), start=1):
        if (answer.text is None) == (answer.token_ids is None):
            raise DataError(f"{path}:{number}: expected text or token_ids, one of them, for image {answer.image_id}")
        if answer.image_id in found:
            raise DataError(f"{path}:{number}: a second answer for image {answer.image_id}; expected one an image")
        if answer.image_id not in known:
            raise DataError(f"{path}:{number}: the annotations have no image {answer.image_id}; expected ids of theirs")
        found[answer.image_id] = answer
    missing = sorted(set(wanted) - found.keys())
    if missing:
        raise DataError(
            f"{path}: no answer for {len(missing)} of {len(wanted)} images, the first of them {missing[0]}; expected a "
            'line for each, with "text": "" where a model wrote nothing'
        )
    return {image_id: found[image_id] for image_id in wanted}


def target_ids(answers: Mapping[int, GivenAnswer], answering: AnsweringModel, *, source: Path) -> dict[int, list[int]]:
    """Return the tokens of each answer, those of a whole one with the end token; ``source``: the file, for errors.

    Raises:
        DataError: if ids are not the model's, or all texts lack the tokens that only special tokens can be.
    """
    end_id, open_id = answering.answers.end_id, answering.answers.open_id
    found: dict[int, list[int]] = {}
    for image_id, answer in answers.items():
        ids = answer.token_ids
        ids = answering.tokenizer.encode(answer.text or "", add_special_tokens=False) if ids is None else list(ids)
        wrong = next((token for token in ids if not 0 <= token < answering.vocab_size), None)
        if wrong is not None:
            raise DataError(
                f"{source}: image {image_id} has token id {wrong}; the model has ids 0 to {answering.vocab_size - 1}"
            )
        stop = next((at for at, token in enumerate(ids) if token in (end_id, answering.pad_id)), len(ids))
        is_cut = stop == len(ids) and answer.finish_reason == "length"
        found[image_id] = ids[:stop] if is_cut else [*ids[:stop], end_id]
    texts = [image_id for image_id, answer in answers.items() if answer.text]
    if open_id is not None and texts and not any(open_id in found[image_id] for image_id in texts):
        marker = answering.tokenizer.convert_ids_to_tokens(open_id)
        raise DataError(
            f"{source}: no text holds {marker}, which opens an object: expected texts with their special tokens "
            "(skip_special_tokens=False in vLLM and SGLang), or token_ids"
        )
    return found


@torch.inference_mode()
def read_batch(
    answering: AnsweringModel,
    samples: DetectionDataset,
    batch: Sequence[int],
    *,
    targets: Mapping[int, Sequence[int]],
    curves_of: Collection[int] = (),
) -> list[Answer]:
    """Read the answers of one batch; what comes back is what generating them would have left.

    Args:
        answering: the model, in evaluation mode.
        samples: encoded samples with empty targets.
        batch: indices of samples.
        targets: image id -> the tokens of :func:`target_ids`.
        curves_of: image ids whose bin distributions are kept whole.
    """
    model, pad_id, end_id = answering.model, answering.pad_id, answering.answers.end_id
    chosen = [replace(sample, target_ids=list(targets[sample.image_id])) for sample in map(samples.__getitem__, batch)]
    inputs = collate(chosen, pad_id=pad_id, image_token_id=answering.image_token_id).to(answering.device)
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
    parts = hidden_TD.split([len(sample.target_ids) for sample in chosen])
    found: list[Answer] = []
    for sample, own_TD in zip(chosen, parts, strict=True):
        values_ST, probs_TK = _read_hidden(answering, own_TD, sample.target_ids)
        if sample.image_id not in curves_of:
            probs_TK = None
        stop_ids = (end_id, pad_id)
        found.append(finish_answer(sample.image_id, sample.target_ids, values_ST, stop_ids=stop_ids, probs_TK=probs_TK))
    return found


def _read_hidden(
    answering: AnsweringModel, hidden_TD: Tensor, target_ids: Sequence[int]
) -> tuple[Tensor, Tensor | None]:
    """Return on the CPU what the logits of an answer say; projected chunk by chunk, so that no ``[T, V]`` exists."""
    head = inner_model(answering.model).get_output_embeddings()
    assert head is not None, "pass_through_head has refused a model without a head"
    targets_T = torch.tensor(target_ids, dtype=torch.int64, device=hidden_TD.device)
    rows = max(1, _CHUNK_ELEMENTS // answering.vocab_size)
    values: list[Tensor] = []
    probs: list[Tensor] = []
    with float32_head(answering.model):
        for hidden_ND, target_N in zip(hidden_TD.split(rows), targets_T.split(rows), strict=True):
            values_SN, p_NK = read_raw_logits(head(hidden_ND).float(), target_N, answering.answers.number_ids)
            values.append(values_SN)
            if p_NK is not None:
                probs.append(p_NK)
    return torch.cat(values, dim=1).cpu(), torch.cat(probs).cpu() if probs else None
