"""Which engine wrote a file of detections: kept beside it, shared facts in a line, differences as a caution."""

import json
from dataclasses import replace

import pytest

from coordexp.evaluate.generated_by import GeneratedBy, Generator, engine_sentences, generator_of
from coordexp.runs.folder import GENERATED_BY

OURS = GeneratedBy(
    engine="coordexp",
    version="0.2.0",
    precision="float32",
    batch_size=16,
    decoding="constrained",
    penalties="none",
    device="1 x CPU",
    libraries={"torch": "2.13.0"},
)


def test_a_record_is_read_back_from_beside_the_detections(tmp_path):
    OURS.write(tmp_path / "detections.expected.json")
    assert generator_of(tmp_path / "detections.argmax.json").record == OURS


def test_published_results_have_a_record_for_each_file(tmp_path):
    records = {"A-s0": {"engine": "coordexp"}, "C-s0": {"engine": "vllm", "version": "0.11"}}
    (tmp_path / GENERATED_BY).write_text(json.dumps(records))
    assert generator_of(tmp_path / "C-s0.json.gz").record == GeneratedBy(engine="vllm", version="0.11")
    assert generator_of(tmp_path / "B-s0.json.gz").record is None


@pytest.mark.parametrize("content", ["{", "[1]", '{"engine": 7}', '{"A-s0": {"engine": 1}}'])
def test_a_damaged_record_says_where_and_leaves_the_engine_unknown(tmp_path, content):
    (tmp_path / GENERATED_BY).write_text(content)
    found = generator_of(tmp_path / "A-s0.json.gz")
    assert found.record is None
    assert str(tmp_path / GENERATED_BY) in found.problem
    (sentence,) = engine_sentences({"A": found})
    assert GENERATED_BY in sentence


def test_what_all_rows_share_is_one_line_and_no_caution():
    sentences = engine_sentences({"A": Generator(OURS), "C": Generator(replace(OURS, decoding="free"))})
    assert len(sentences) == 1
    for fact in ("coordexp", "0.2.0", "float32", "16", "1 x CPU", "torch 2.13.0"):
        assert fact in sentences[0]


def test_each_difference_is_a_caution_with_the_rows_of_each_value():
    other = replace(OURS, engine="vllm", version="0.11", precision="bfloat16", libraries={})
    sentences = engine_sentences({"A": Generator(OURS), "C": Generator(OURS), "v": Generator(other)})
    cautions = [sentence for sentence in sentences if sentence.startswith("CAUTION")]
    assert len(cautions) == 4  # engine, version, precision, torch
    (precision,) = [sentence for sentence in cautions if "precision" in sentence.partition(":")[2].partition(":")[0]]
    assert "float32 (A, C)" in precision
    assert "bfloat16 (v)" in precision


def test_unknown_engines_are_one_line_without_a_caution():
    assert engine_sentences({"a": Generator(), "b": Generator()}) == []
    sentences = engine_sentences({"A": Generator(OURS), "b": Generator(), "c": Generator()})
    assert not any(sentence.startswith("CAUTION") for sentence in sentences)
    (unknown,) = [sentence for sentence in sentences if GENERATED_BY in sentence]
    assert "b, c" in unknown
