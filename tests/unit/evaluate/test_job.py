"""A stand-alone evaluation's parts that need no model."""

import shutil
from pathlib import Path

import pytest

from coordexp.data.dataset import DEFAULT_PROMPT
from coordexp.data.sources.shapes import ShapesSpec, write_shapes
from coordexp.errors import ConfigError, DataError, ResourceError
from coordexp.evaluate.evaluation import EvaluationSpec
from coordexp.evaluate.job import (
    EvaluationJob,
    check_output,
    default_output,
    open_decoder,
    open_evaluation,
    read_aliases,
    unlike_training,
)
from coordexp.model.checkpoint.directory import TINY_BASE
from coordexp.model.tiny.parts import build_tokenizer


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shapes(tmp_path_factory.mktemp("shapes") / "data", ShapesSpec(num_train=1, num_val=40))


def job(shapes: Path, **changes: object) -> EvaluationJob:
    return EvaluationJob("embedded", annotations=shapes / "instances_val.json", images=shapes / "val", **changes)


def test_results_go_beside_the_checkpoint(shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merged, adapter = tmp_path / "C-s0" / "merged", tmp_path / "C-s0" / "step_000580"
    merged.mkdir(parents=True)
    adapter.mkdir()
    files = {"annotations": Path("x/instances_val.json"), "images": shapes}
    at = tmp_path / "C-s0" / "eval"
    assert default_output(EvaluationJob(str(merged), **files)) == at / "merged-instances_val"
    assert default_output(EvaluationJob(str(merged), **files, num_images=50)) == at / "merged-instances_val-50"
    json_spec = EvaluationSpec(answer="qwen-json", decoding=("free",))
    found = default_output(EvaluationJob("org/model", **files, num_images=50, spec=json_spec))
    assert found == Path("eval/org-model-instances_val-qwen-json-50")
    found = default_output(EvaluationJob("embedded", **files, spec=EvaluationSpec(answer="text")))
    assert found == Path("eval/embedded-instances_val-text")
    found = default_output(EvaluationJob("embedded", **files, adapter=adapter))
    assert found == at / "step_000580-instances_val"
    assert default_output(EvaluationJob("org/model", **files)) == Path("eval/org-model-instances_val")
    monkeypatch.chdir(merged)
    assert default_output(EvaluationJob(".", **files)) == at / "merged-instances_val"


def test_a_part_of_the_images_is_always_the_same_part(shapes: Path) -> None:
    assert len(open_evaluation(job(shapes)).samples) == 40
    part = open_evaluation(job(shapes, num_images=10))
    again = open_evaluation(job(shapes, num_images=10))
    assert len(part.samples) == 10
    assert [s.image_id for s in part.samples] == [s.image_id for s in again.samples]
    assert len({len(sample.objects) for sample in part.samples}) > 1
    assert len(open_evaluation(job(shapes, num_images=400)).samples) == 40


@pytest.mark.parametrize("decoding", [("constrained",), ("constrained", "free")])
def test_answers_in_json_cannot_be_constrained(decoding: tuple) -> None:
    with pytest.raises(ConfigError, match="--answer qwen-json is decoded freely only"):
        EvaluationSpec(answer="qwen-json", decoding=decoding)


def test_the_question_names_the_categories_of_the_file(shapes: Path) -> None:
    spec = EvaluationSpec(answer="qwen-json", decoding=("free",), max_new_tokens=2)
    for prompt, asked in ((None, 'categories: "red circle, '), ("Find {categories}.", "Find red circle, ")):
        chosen = job(shapes, spec=spec, prompt=prompt, num_images=1)
        decoder = open_decoder(chosen, open_evaluation(chosen))
        ids = decoder.samples[0].prompt_ids
        assert asked in build_tokenizer().decode(ids)


TRAINED = '{"prompt": "Name all.", "min_pixels": 1024, "max_pixels": 4096}'


def test_a_checkpoint_is_asked_as_it_was_trained_unless_something_else_is_said(shapes: Path, tmp_path: Path) -> None:
    checkpoint = shutil.copytree(TINY_BASE, tmp_path / "merged")
    spec = EvaluationSpec(answer="text")

    def asked(**changes: object) -> tuple[str, int]:
        files = {"annotations": shapes / "instances_val.json", "images": shapes / "val"}
        chosen = EvaluationJob(str(checkpoint), **files, spec=spec, num_images=1, **changes)
        decoder = open_decoder(chosen, open_evaluation(chosen))
        return build_tokenizer().decode(decoder.samples[0].prompt_ids), decoder._generation.image_spec.max_pixels

    words, pixels = asked()
    assert DEFAULT_PROMPT in words
    assert pixels == 9216
    (checkpoint / "trained_with.json").write_text(TRAINED)
    words, pixels = asked()
    assert "Name all." in words
    assert pixels == 4096
    words, pixels = asked(prompt="What is there?", max_pixels=2048)
    assert "What is there?" in words
    assert pixels == 2048


def test_what_is_asked_unlike_training_is_said(tmp_path: Path) -> None:
    checkpoint = shutil.copytree(TINY_BASE, tmp_path / "merged")
    other = {"prompt": "What is there?", "max_pixels": 2048}
    assert unlike_training(str(checkpoint), None, **other) == []  # it does not say what it was trained with
    (checkpoint / "trained_with.json").write_text(TRAINED)
    assert unlike_training(str(checkpoint), None, prompt=None, max_pixels=None) == []
    assert unlike_training(str(checkpoint), None, prompt="Name all.", max_pixels=4096) == []
    assert unlike_training("nobody/has-this", None, **other) == []
    pixels, words = unlike_training(str(checkpoint), None, **other)
    assert pixels.startswith(f"{checkpoint} was trained on images of at most 4,096 pixels and is asked with 2,048; ")
    assert words.startswith(f"{checkpoint} was trained with the prompt 'Name all.' and is asked with 'What is there?'")
    assert unlike_training(str(checkpoint), None, **other, is_json=True) == [pixels]


def test_aliases(shapes: Path, tmp_path: Path) -> None:
    path = tmp_path / "aliases.json"
    path.write_text('{"crimson disc": "red circle"}')
    assert read_aliases(path) == {"crimson disc": "red circle"}
    open_evaluation(job(shapes, spec=EvaluationSpec(aliases=read_aliases(path))))
    with pytest.raises(DataError, match="alias 'crimson disc' stands for 'no such thing'"):
        open_evaluation(job(shapes, spec=EvaluationSpec(aliases={"crimson disc": "no such thing"})))
    for text in ("[1]", '{"a": 1}', "3", "{"):
        path.write_text(text)
        with pytest.raises(DataError, match=r"aliases\.json: expected an object such as"):
            read_aliases(path)
    with pytest.raises(DataError, match="file not found"):
        read_aliases(tmp_path / "none.json")


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    check_output(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match=r"file/x: expected a folder that can be written"):
        check_output(tmp_path / "file" / "x")
