"""Answers that were made elsewhere: which files are taken, and that reading them gives what generating them gave."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.detection.names.images import ImageNames
from coordexp.errors import DataError, TrainingError
from coordexp.evaluate.generate import given
from coordexp.evaluate.generate.answer import Answer
from coordexp.evaluate.generate.given import GivenAnswer, read_batch, read_given_answers, target_ids

NUMBERS = [1, 2, 3, 4, 5, 6]
FILES = {1: "val/a_1.jpg", 2: "val/0007.jpg", 5: "val/Café.png"}


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
    ("lines", "facts"),
    [
        ([{"image_id": 1, "text": ""}], r"\b1 of 2 images.*\b2;"),
        ([{"image_id": 1, "text": ""}, {"image_id": 1, "text": "a"}], r"jsonl:2: .*image 1"),
        ([{"image_id": 9, "text": ""}], r"jsonl:1: .*image 9"),
        ([{"image_id": 1}], r"jsonl:1: .*text or token_ids"),
        ([{"image_id": 1, "text": "", "token_ids": []}], r"jsonl:1: .*text or token_ids"),
        ([{"image_id": 1, "token_ids": ["a"]}], r"jsonl:1: token_ids.0: "),
        ([{"image_id": 1, "text": "", "finish_reason": "abort"}], r"jsonl:1: finish_reason: "),
        (["{"], r"jsonl:1: .*line 1 column 2.*JSON"),
        ([], r"\b2 of 2 images"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path: Path, lines: list, facts: str) -> None:
    with pytest.raises(DataError, match=facts):
        read_given_answers(answer_file(tmp_path, *lines), known={1, 2, 3}, wanted=[1, 2])


def chat(text: object, reason: str = "stop") -> dict:
    """A record of OpenAI's batch output without its custom id, which vLLM writes, too."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return {"id": "b", "response": {"status_code": 200, "body": {"choices": [choice], "usage": {}}}, "error": None}


RECORDS = {
    "by id": lambda i, text: {"image_id": i, "text": text},
    "id as text": lambda i, text: {"image_id": str(i), "text": text},
    "by file name": lambda i, text: {"file_name": FILES[i], "text": text},
    "by path of another machine": lambda i, text: {"image": "C:\\data\\" + FILES[i].upper(), "response": text},
    "by stem": lambda i, text: {"image_id": Path(FILES[i]).stem, "answer": text},
    "ms-swift": lambda i, text: {"id": 6 - i, "response": text, "images": [FILES[i]], "labels": None},
    "vllm": lambda i, text: {"image_id": i, "prompt": "x", "outputs": [{"text": text, "finish_reason": "stop"}]},
    "openai, ids": lambda i, text: {"custom_id": str(i), **chat(text)},
    "openai, files": lambda i, text: {"custom_id": FILES[i], **chat(text)},
    "openai, parts": lambda i, text: {"custom_id": FILES[i], **chat([{"type": "text", "text": text}])},
    "openai, numbers": lambda i, text: {"custom_id": f"request-{i}", **chat(text)},
    "chat completion": lambda i, text: {"image_id": i, "choices": [{"message": {"content": text}}]},
    "gemini": lambda i, text: {
        "key": FILES[i],
        "response": {"candidates": [{"content": {"parts": [{"text": text}]}, "finishReason": "STOP"}]},
    },
    "anthropic": lambda i, text: {
        "custom_id": FILES[i],
        "result": {"type": "succeeded", "message": {"content": [{"type": "text", "text": text}],
                                                    "stop_reason": "end_turn"}},
    },
}  # fmt: skip


@pytest.mark.parametrize("is_list", [False, True])
@pytest.mark.parametrize("form", RECORDS)
def test_every_record_of_an_answer_is_read(form: str, is_list: bool, tmp_path: Path) -> None:
    lines = [RECORDS[form](image_id, f"text {image_id}") for image_id in FILES]
    path = answer_file(tmp_path, json.dumps(lines, indent=1)) if is_list else answer_file(tmp_path, *lines)
    found = read_given_answers(path, known=FILES, wanted=[5, 1], names=ImageNames(FILES))
    assert [(key, answer.text) for key, answer in found.by_image.items()] == [(5, "text 5"), (1, "text 1")]
    is_by_id = form in ("by id", "id as text", "vllm", "openai, ids", "chat completion")
    assert bool(found.remarks) != is_by_id, found.remarks


def test_a_number_as_text_is_an_id_and_with_leading_zeros_a_file(tmp_path: Path) -> None:
    names = ImageNames({7: "a.jpg", 12: "0007.jpg", 13: "7.jpg"})
    path = answer_file(tmp_path, *({"custom_id": key, **chat(key)} for key in ("7", "0007", "13")))
    found = read_given_answers(path, known={7, 12, 13}, wanted=[7, 12, 13], names=names)
    assert {key: answer.text for key, answer in found.by_image.items()} == {7: "7", 12: "0007", 13: "13"}


def test_a_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("image_id,text\n1,a\n")
    with pytest.raises(DataError, match=r"a\.csv.*to_json"):
        read_given_answers(tmp_path / "a.csv", known={1}, wanted=[1])


def test_a_map_of_file_names_is_read(tmp_path: Path) -> None:
    path = answer_file(tmp_path, json.dumps({name: f"text {key}" for key, name in FILES.items()}, indent=1))
    found = read_given_answers(path, known=FILES, wanted=FILES, names=ImageNames(FILES))
    assert {key: answer.text for key, answer in found.by_image.items()} == {key: f"text {key}" for key in FILES}


def test_an_engine_that_gives_both_is_read_by_what_fits_the_reader(tmp_path: Path) -> None:
    lines = [{"image_id": 1, "outputs": [{"text": "a", "token_ids": [7, 8], "finish_reason": "length"}]}]
    path = answer_file(tmp_path, *lines)
    (exact,) = read_given_answers(path, known={1}, wanted={1}).by_image.values()
    assert (exact.token_ids, exact.text, exact.finish_reason) == ((7, 8), None, "length")
    (text,) = read_given_answers(path, known={1}, wanted={1}, prefers_text=True).by_image.values()
    assert (text.token_ids, text.text) == (None, "a")


@pytest.mark.parametrize(
    ("lines", "facts"),
    [
        ([{"custom_id": f"request-{n}", **chat("a")} for n in range(3)],
         r":1: .*'request-0'.*3 of 3"),
        ([{"custom_id": f"request-{n}", **chat("a")} for n in (1, 2)],
         r":1: .*'request-1'"),
        ([{"custom_id": "1", **chat("a")}, {"custom_id": "2", "response": None, "error": {"code": "rate_limit"}}],
         r"1 of 2 requests.*:2: .*rate_limit"),
        ([{"custom_id": "1", "response": {"status_code": 400, "body": {"error": {"message": "too long"}}}}],
         "1 of 1 request.*too long"),
        ([{"custom_id": "1", **chat(None, "content_filter")}], "content_filter"),
        ([{"image_id": 1, "outputs": [{"text": "a"}, {"text": "b"}]}], "2 choices"),
        ([{"text": "a"}], ":1: .*image"),
        ([{"image_id": 1, "text": {"<OD>": {}}}], ":1: .*text or token_ids"),
        ([{"image_id": 1, "bbox": [1, 2, 3, 4], "score": 1}], ":1: .*text or token_ids.*image_id, bbox"),
        (["[1"], "JSON"),
    ],
)  # fmt: skip
def test_an_answer_that_is_not_there_is_never_taken_for_an_empty_one(tmp_path: Path, lines: list, facts: str) -> None:
    with pytest.raises(DataError, match=facts):
        read_given_answers(answer_file(tmp_path, *lines), known=FILES, wanted=[1], names=ImageNames(FILES))


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
    with pytest.raises(DataError, match=r"image 1.*\b999999\b"):
        tokens(token_ids=(999_999,))
    with pytest.raises(DataError, match=r"^a: .*<\|object_ref_start\|>.*skip_special_tokens=False"):
        tokens(text="red circle")
