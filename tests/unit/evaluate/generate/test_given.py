"""Answers that were made elsewhere: which files are taken, and that reading them gives what generating them gave."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from coordexp.coord_tokens.grammar.constrain import ObjectGrammar
from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.errors import DataError, TrainingError
from coordexp.evaluate.generate import given
from coordexp.evaluate.generate.generation import GeneratedSequence, generate_sequences
from coordexp.evaluate.generate.given import GivenAnswer, read_given_answers, read_sequences, target_ids

NUMBERS = [1, 2, 3, 4, 5, 6]


def generated(base, *, constrained: bool) -> list[GeneratedSequence]:
    grammar = ObjectGrammar.for_model(base.vocab, base.tokenizer, vocab_size=base.vocab_size) if constrained else None
    samples = [base.sample(number) for number in NUMBERS]
    queues = [[0, 1, 2, 3], [4, 5]]
    return generate_sequences(
        base.model, samples, spec=base.spec(), grammar=grammar, queues=queues, batch_size=3, curves_of=[2, 3]
    )


def again(base, sequences: list[GeneratedSequence], **changed) -> list[GeneratedSequence]:
    """The same answers read beside other images than they were generated with."""
    answers = {
        seq.image_id: GivenAnswer(seq.image_id, token_ids=seq.ids, finish_reason="length" if seq.truncated else "stop")
        for seq in sequences
    }
    spec = replace(base.spec(max_new_tokens=1), **changed)  # a limit of generation cuts nothing here
    ids = target_ids(answers, base.tokenizer, spec, vocab_size=base.vocab_size, source=Path("a.jsonl"))
    samples = [base.sample(number) for number in NUMBERS]
    return read_sequences(base.model, samples, ids, spec=spec, batches=[[5, 0], [1, 2, 3, 4]], curves_of=[2, 3])


@pytest.mark.parametrize("constrained", [True, False])
def test_our_own_answers_are_read_as_they_were_generated(base, constrained: bool, monkeypatch) -> None:
    monkeypatch.setattr(given, "_CHUNK_ELEMENTS", 7 * base.vocab_size)  # several chunks, and a last one that is short
    sequences = generated(base, constrained=constrained)
    assert any(seq.truncated for seq in sequences)
    assert base.vocab.box_start_id is None or not all(seq.truncated for seq in sequences)
    read = {seq.image_id: seq for seq in again(base, sequences)}
    assert list(read) == [6, 1, 2, 3, 4, 5]
    for seq in sequences:
        found = read[seq.image_id]
        assert (found.ids, found.truncated) == (seq.ids, seq.truncated)
        for name in ("log_probs", "coord_mass", "expected", "width"):
            ours = np.array(getattr(seq.statistics, name))
            theirs = np.array(getattr(found.statistics, name))
            assert theirs == pytest.approx(ours, abs=5e-4, rel=1e-3), name
        assert (found.coord_probs is None) == (seq.image_id not in (2, 3))
        if seq.coord_probs is not None:
            assert np.abs(found.coord_probs - seq.coord_probs).max() < 1e-4


def test_another_answer_has_other_numbers(native) -> None:
    """Negative control: the numbers are of the tokens that were given, not of what the model would write."""
    sequences = generated(native, constrained=True)
    first, second = (seq for seq in sequences if seq.image_id in (1, 2))
    swapped = [replace(first, image_id=2), replace(second, image_id=1), *(s for s in sequences if s.image_id > 2)]
    read = {seq.image_id: seq for seq in again(native, swapped)}
    assert read[2].ids == first.ids
    assert read[2].statistics.log_probs != pytest.approx(first.statistics.log_probs, abs=1e-2)


def test_offsets_of_an_adapter_are_added(native) -> None:
    adapted = replace(native, model=copy.deepcopy(native.model))
    adapter = install_coord_offset_adapter(adapted.model, coord_ids=native.vocab.coord_ids)
    with torch.no_grad():
        adapter.embed_offset.normal_(std=0.5, generator=torch.Generator().manual_seed(0))
    adapted.model.eval()
    sequences = generated(adapted, constrained=True)
    for seq, found in zip(sequences, sorted(again(adapted, sequences), key=lambda seq: seq.image_id), strict=True):
        assert found.statistics.log_probs == pytest.approx(seq.statistics.log_probs, abs=1e-3)
    without = sorted(again(native, sequences), key=lambda seq: seq.image_id)
    assert without[0].statistics.log_probs != pytest.approx(sequences[0].statistics.log_probs, abs=1e-2)


def test_logits_that_are_not_finite_are_refused(native, monkeypatch) -> None:
    sequences = generated(native, constrained=True)
    weight = native.model.lm_head.weight
    before = weight[5].clone()
    try:
        with torch.no_grad():
            weight[5] = torch.nan
        with pytest.raises(TrainingError, match="not finite"):
            again(native, sequences)
    finally:
        with torch.no_grad():
            weight[5] = before


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


def test_no_text_at_all_and_a_cut_packed_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="file not found"):
        read_given_answers(tmp_path / "none.jsonl", known={1}, wanted=[1])
    (tmp_path / "a.jsonl").write_bytes(b"\x08\x00\xff\xfe")
    with pytest.raises(DataError, match="expected a text file"):
        read_given_answers(tmp_path / "a.jsonl", known={1}, wanted=[1])
    (tmp_path / "a.gz").write_bytes(b"\x1f\x8b\x08\x00\xff\xfe")
    with pytest.raises(DataError, match="gzip cannot unpack it"):
        read_given_answers(tmp_path / "a.gz", known={1}, wanted=[1])


def test_images_that_are_not_wanted_are_left_out(tmp_path: Path) -> None:
    path = answer_file(tmp_path, {"image_id": 3, "text": "c", "made_by": "x"}, {"image_id": 1, "text": "a"})
    assert read_given_answers(path, known={1, 2, 3}, wanted=[1]) == {1: GivenAnswer(1, text="a")}


def test_texts_and_ids_become_the_same_tokens(native) -> None:
    vocab, spec = native.vocab, native.spec()
    coords = "".join(f"<|coord_{k}|>" for k in (10, 20, 30, 40))
    text = f"<|object_ref_start|>red circle<|box_start|>{coords}<|box_end|>"
    ids = native.tokenizer.encode(text, add_special_tokens=False)
    assert ids[-2] == vocab.coord_ids.start + 40

    def tokens(**answer: object) -> list[int]:
        given = {1: GivenAnswer(1, **answer)}
        return target_ids(given, native.tokenizer, spec, vocab_size=native.vocab_size, source=Path("a"))[1]

    whole = [*ids, vocab.end_id]
    assert tokens(text=text) == tokens(text=f"{text}<|im_end|>") == tokens(token_ids=tuple(ids)) == whole
    assert tokens(token_ids=(*ids, spec.pad_id, 7)) == whole  # what stands behind the end is no answer
    assert tokens(text=text, finish_reason="length") == ids
    assert tokens(text=f"{text}<|im_end|>", finish_reason="length") == whole  # it has ended all the same
    assert tokens(text="") == [vocab.end_id]
    with pytest.raises(DataError, match=r"image 1 has token id 999999; the model has ids 0 to"):
        tokens(token_ids=(999_999,))
    with pytest.raises(DataError, match=r"a: no text holds <\|object_ref_start\|>.*skip_special_tokens=False"):
        tokens(text="red circle")
