"""Answers that were made elsewhere: which files are taken, and that reading them gives what generating them gave."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.errors import DataError, TrainingError
from coordexp.evaluate.generate import given
from coordexp.evaluate.generate.answer import Answer
from coordexp.evaluate.generate.given import GivenAnswer, read_batch, read_given_answers, target_ids

NUMBERS = [1, 2, 3, 4, 5, 6]


def again(base, answers: list[Answer]) -> list[Answer]:
    """The same answers read beside other images than they were generated with."""
    told = {
        answer.image_id: GivenAnswer(
            answer.image_id,
            token_ids=tuple(answer.ids.tolist()),
            finish_reason="length" if answer.truncated else "stop",
        )
        for answer in answers
    }
    targets = target_ids(told, base.answering, source=Path("a.jsonl"))
    samples = [base.sample(number) for number in NUMBERS]
    parts = [
        read_batch(base.answering, samples, batch, targets=targets, curves_of=[2, 3])
        for batch in ([5, 0], [1, 2, 3, 4])
    ]
    return sorted((answer for part in parts for answer in part), key=lambda answer: answer.image_id)


@pytest.mark.parametrize("constrained", [True, False])
def test_our_own_answers_are_read_as_they_were_generated(base, constrained: bool, monkeypatch) -> None:
    monkeypatch.setattr(given, "_CHUNK_ELEMENTS", 7 * base.vocab_size)  # several chunks, and a last one that is short
    generated = base.answers(NUMBERS, constrained=constrained, curves_of=[2, 3])
    assert any(answer.truncated for answer in generated)
    assert base.vocab.box_start_id is None or not all(answer.truncated for answer in generated)
    for answer, found in zip(generated, again(base, generated), strict=True):
        assert (found.image_id, found.ids.tolist(), found.truncated) == (
            answer.image_id, answer.ids.tolist(), answer.truncated,
        )  # fmt: skip
        for name in ("log_probs", "coord_mass", "expected", "width"):
            assert getattr(found, name) == pytest.approx(getattr(answer, name), abs=5e-4, rel=1e-3), name
        assert (found.probs_TK is None) == (answer.image_id not in (2, 3))
        if answer.probs_TK is not None:
            assert found.probs_TK == pytest.approx(answer.probs_TK, abs=1e-4)


def test_another_answer_and_another_model_have_other_numbers(native) -> None:
    """Negative controls: the numbers are of the tokens that were given, and of the adapter that reads them."""
    first, second, *others = native.answers(NUMBERS)
    swapped = again(native, [replace(first, image_id=2), replace(second, image_id=1), *others])
    assert swapped[1].ids.tolist() == first.ids.tolist()
    assert swapped[1].log_probs != pytest.approx(first.log_probs, abs=1e-2)
    adapted = replace(native, model=copy.deepcopy(native.model))
    adapter = install_coord_offset_adapter(adapted.model, coord_ids=native.vocab.coord_ids)
    with torch.no_grad():
        adapter.embed_offset.normal_(std=0.5, generator=torch.Generator().manual_seed(0))
    adapted.model.eval()
    generated = adapted.answers(NUMBERS)
    for answer, found in zip(generated, again(adapted, generated), strict=True):
        assert found.log_probs == pytest.approx(answer.log_probs, abs=1e-3)
    assert again(native, generated)[0].log_probs != pytest.approx(generated[0].log_probs, abs=1e-2)


def test_logits_that_are_not_finite_are_refused(native) -> None:
    generated = native.answers(NUMBERS)
    handle = native.model.lm_head.register_forward_hook(lambda module, args, logits: logits * float("nan"))
    try:
        with pytest.raises(TrainingError, match="not finite"):
            again(native, generated)
    finally:
        handle.remove()


def answer_file(folder: Path, *lines: object) -> Path:
    path = folder / "answers.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"image_id": 1, "text": ""}], r"no answer for 1 of 2 images, the first of them 2"),
        ([{"image_id": 1, "text": ""}, {"image_id": 1, "text": "a"}], r":2: a second answer for image 1"),
        ([{"image_id": 9, "text": ""}], r":1: the annotations have no image 9"),
        ([{"image_id": 1}], r":1: expected text or token_ids"),
        ([{"image_id": 1, "text": "", "token_ids": []}], r":1: expected text or token_ids"),
        ([{"image_id": 1, "token_ids": ["a"]}], r":1: token_ids.0: "),
        ([{"image_id": 1, "text": "", "finish_reason": "abort"}], r":1: finish_reason: "),
        (["{"], r":1: line 1 column 2: not valid JSON"),
        ([], r"no answer for 2 of 2 images"),
    ],
)
def test_a_file_that_is_wrong_is_one_sentence(tmp_path: Path, lines: list, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_given_answers(answer_file(tmp_path, *lines), known={1, 2, 3}, wanted=[1, 2])


def test_texts_and_ids_become_the_same_tokens(native) -> None:
    vocab = native.vocab
    coords = "".join(f"<|coord_{k}|>" for k in (10, 20, 30, 40))
    text = f"<|object_ref_start|>red circle<|box_start|>{coords}<|box_end|>"
    ids = native.tokenizer.encode(text, add_special_tokens=False)
    assert ids[-2] == vocab.coord_ids.start + 40

    def tokens(**answer: object) -> list[int]:
        return target_ids({1: GivenAnswer(1, **answer)}, native.answering, source=Path("a"))[1]

    whole = [*ids, vocab.end_id]
    assert tokens(text=text) == tokens(text=f"{text}<|im_end|>") == tokens(token_ids=tuple(ids)) == whole
    assert (
        tokens(token_ids=(*ids, native.tokenizer.pad_token_id, 7)) == whole
    )  # what stands behind the end is no answer
    assert tokens(text=text, finish_reason="length") == ids
    assert tokens(text=f"{text}<|im_end|>", finish_reason="length") == whole  # it has ended all the same
    assert tokens(text="") == [vocab.end_id]
    with pytest.raises(DataError, match=r"image 1 has token id 999999; the model has ids 0 to"):
        tokens(token_ids=(999_999,))
    with pytest.raises(DataError, match=r"a: no text holds <\|object_ref_start\|>.*skip_special_tokens=False"):
        tokens(text="red circle")
