"""A stand-alone evaluation's parts that need no model."""

import shutil
from pathlib import Path

import pytest

from coordexp.config.schema.data import Shapes
from coordexp.data.prompt import DEFAULT_PROMPT
from coordexp.data.sources.shapes import write_shapes
from coordexp.errors import ConfigError, DataError, ResourceError
from coordexp.evaluate.checkpoint import check_output, default_output, open_data, open_evaluation, unlike_training
from coordexp.evaluate.settings import EvaluationSettings
from coordexp.model.checkpoint.directory import TINY_BASE
from coordexp.model.tiny.parts import build_tokenizer


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shapes(tmp_path_factory.mktemp("shapes") / "data", Shapes(num_train=1, num_val=40))


def settings_of(shapes: Path, **changes) -> EvaluationSettings:
    files = {"annotations": shapes / "instances_val.json", "images": shapes / "val"}
    return EvaluationSettings(**({"model": "embedded"} | files | changes))


def test_results_go_beside_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merged = tmp_path / "C-s0" / "merged"
    adapter = tmp_path / "C-s0" / "step_000580"
    merged.mkdir(parents=True)
    adapter.mkdir()
    results = tmp_path / "C-s0" / "eval"

    def output(model: object, **changes) -> Path:
        return default_output(EvaluationSettings(model=str(model), annotations=Path("x/instances_val.json"), **changes))

    assert output(merged) == results / "merged-instances_val"
    assert output(merged, num_images=50) == results / "merged-instances_val-50"
    of_generations = output(merged, generations=Path("x/answers.jsonl"), decoding=("free",))
    assert of_generations == results / "merged-instances_val-answers"
    of_json = output("org/model", num_images=50, answer="qwen-json", decoding=("free",))
    assert of_json == Path("eval/org-model-instances_val-qwen-json-50")
    assert output("embedded", answer="text") == Path("eval/embedded-instances_val-text")
    assert output("embedded", adapter=adapter) == results / "step_000580-instances_val"
    assert output("org/model") == Path("eval/org-model-instances_val")
    monkeypatch.chdir(merged)
    assert output(".") == results / "merged-instances_val"


def test_a_subset_of_the_images_is_always_the_same(shapes: Path) -> None:
    assert len(open_data(settings_of(shapes)).samples) == 40
    subset = open_data(settings_of(shapes, num_images=10))
    again = open_data(settings_of(shapes, num_images=10))
    assert len(subset.samples) == 10
    assert [sample.image_id for sample in subset.samples] == [sample.image_id for sample in again.samples]
    assert len({len(sample.objects) for sample in subset.samples}) > 1
    assert len(open_data(settings_of(shapes, num_images=400)).samples) == 40


@pytest.mark.parametrize("decoding", [("constrained",), ("constrained", "free")])
def test_answers_in_json_cannot_be_constrained(decoding: tuple) -> None:
    with pytest.raises(ConfigError, match="--answer qwen-json"):
        EvaluationSettings(answer="qwen-json", decoding=decoding)


def asked(settings: EvaluationSettings) -> tuple[str, int]:
    """Return the words of the prompt, and the largest image."""
    evaluation = open_evaluation(settings, open_data(settings))
    words = build_tokenizer().decode(evaluation.samples[0].prompt_ids)
    return words, evaluation.answering.image_spec.max_pixels


def test_a_checkpoint_is_asked_as_it_was_trained_or_something_else_is_said(shapes: Path, tmp_path: Path) -> None:
    checkpoint = shutil.copytree(TINY_BASE, tmp_path / "merged")

    def settings(model: object = checkpoint, **changes) -> EvaluationSettings:
        return settings_of(shapes, model=str(model), **({"answer": "text", "num_images": 1} | changes))

    other = {"prompt": "What is there?", "max_pixels": 2048}
    words, pixels = asked(settings())
    assert DEFAULT_PROMPT in words
    assert pixels == 9216
    assert unlike_training(settings(**other)) == []  # it does not say what it was trained with
    (checkpoint / "trained_with.json").write_text('{"prompt": "Name all.", "min_pixels": 1024, "max_pixels": 4096}')
    words, pixels = asked(settings())
    assert "Name all." in words
    assert pixels == 4096
    words, pixels = asked(settings(**other))
    assert "What is there?" in words
    assert pixels == 2048
    assert unlike_training(settings()) == []
    assert unlike_training(settings(prompt="Name all.", max_pixels=4096)) == []
    assert unlike_training(settings("nobody/has-this", **other)) == []
    of_pixels, of_words = unlike_training(settings(**other))
    for fact in (str(checkpoint), "4,096", "2,048", "--max-pixels"):
        assert fact in of_pixels
    for fact in (str(checkpoint), "'Name all.'", "'What is there?'", "--prompt"):
        assert fact in of_words
    assert unlike_training(settings(**other, answer="qwen-json", decoding=("free",))) == [of_pixels]


def test_aliases_stand_for_categories(shapes: Path) -> None:
    open_data(settings_of(shapes, aliases={"crimson disc": "red circle"}))
    with pytest.raises(DataError, match="'crimson disc'.*'no such thing'"):
        open_data(settings_of(shapes, aliases={"crimson disc": "no such thing"}))


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    check_output(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match=r"file/x"):
        check_output(tmp_path / "file" / "x")


def test_the_question_names_the_categories_of_the_file(shapes: Path) -> None:
    for prompt, words in ((None, 'categories: "red circle, '), ("Find {categories}.", "Find red circle, ")):
        settings = settings_of(shapes, answer="qwen-json", decoding=("free",), prompt=prompt, num_images=1)
        assert words in asked(settings)[0]
