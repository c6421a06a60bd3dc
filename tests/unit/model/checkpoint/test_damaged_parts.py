"""Parts of checkpoints of another type or size, and templates that misbehave: one sentence each."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from coordexp.data.prompt import Prompt
from coordexp.errors import CheckpointError, TokenizerError
from coordexp.model.checkpoint.stored_model import StoredModel, load_stock
from coordexp.model.processor import read_tokenizer


@pytest.fixture
def checkpoint(make_base: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(make_base(), tmp_path / "checkpoint"))


def _change(file: Path, path: str, value: object) -> None:
    content = json.loads(file.read_text())
    *parents, last = path.split(".")
    place = content
    for name in parents:
        place = place[name]
    place[last] = value
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("field", "value", "facts"),
    [
        ("text_config.hidden_size", "wide", "hidden_size"),
        ("text_config.hidden_act", "nope", "'nope'"),
        ("dtype", "float7", "float7"),
        ("model_type", "qwen3", "model_type.*'qwen3'.*qwen3_vl"),
        ("model_type", None, "model_type.*missing.*qwen3_vl"),
        ("quantization_config", {"quant_method": "fp8"}, "quantization_config"),
    ],
)
def test_what_transformers_says_of_a_field_is_one_sentence_with_the_file(checkpoint: Path, field, value, facts) -> None:
    _change(checkpoint / "config.json", field, value)
    with pytest.raises(CheckpointError, match=rf"config\.json[^\n]*{facts}") as raised:
        StoredModel.of_headers(checkpoint)
    assert len(str(raised.value).splitlines()) == 1


def test_a_tensor_for_which_the_model_has_no_place_is_refused(checkpoint: Path) -> None:
    """The configuration names one vision layer less whose features the language model gets: another model."""
    _change(checkpoint / "config.json", "vision_config.deepstack_visual_indexes", [0])
    with pytest.raises(CheckpointError, match=r"6 weights.*unexpected.*model\.visual\.deepstack_merger_list\.1"):
        StoredModel.of_headers(checkpoint)
    with pytest.raises(CheckpointError, match="6 weights.*unexpected"):
        load_stock(checkpoint, dtype="auto")


@pytest.mark.parametrize("template", ["{% if %}", "{{ raise_exception('not for you') }}", "no image"])
def test_a_template_that_does_not_render_is_one_sentence(checkpoint: Path, template: str) -> None:
    (checkpoint / "chat_template.jinja").write_text(template)
    with pytest.raises((CheckpointError, TokenizerError), match=rf"{checkpoint}[^\n]*chat template") as raised:
        Prompt.build(read_tokenizer(checkpoint))
    assert len(str(raised.value).splitlines()) == 1
