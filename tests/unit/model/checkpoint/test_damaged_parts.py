"""Parts of checkpoints and adapters of another type, rank or size, and templates that misbehave: one sentence each."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from coordexp.data.dataset import Prompt
from coordexp.errors import CheckpointError, CoordExpError, TokenizerError
from coordexp.model import chat_template
from coordexp.model.chat_template import check_chat_template
from coordexp.model.checkpoint.adapter import read_adapter
from coordexp.model.checkpoint.directory import check_config, foreign_errors, model_config
from coordexp.model.checkpoint.fields import Activation, RopeType
from coordexp.model.checkpoint.stored_model import StoredModel
from coordexp.model.loading import load, load_weights
from coordexp.model.processor import Processor, read_tokenizer
from tests.unit.model.real_vocabulary import PUBLISHED

DEEP = "[" * 100_000
MUST_FAIL = ("model", "model.vocab", "pre_tokenizer", "patch_size", "image_mean")


@pytest.fixture
def checkpoint(make_base: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(make_base(), tmp_path / "checkpoint"))


@pytest.fixture
def adapter(make_base: Callable[..., Path], make_adapter: Callable[..., Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(make_adapter(make_base()), tmp_path / "adapter"))


def _change(file: Path, path: str, value: object) -> None:
    content = json.loads(file.read_text())
    *parents, last = path.split(".")
    place = content
    for name in parents:
        place = place[name]
    place[last] = value
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("text_config.hidden_size", "wide"),
        ("text_config.hidden_size", -5),
        ("text_config.num_hidden_layers", 10**9),
        ("text_config.num_attention_heads", [1]),
        ("text_config.vocab_size", 1.5),
        ("text_config.rms_norm_eps", {}),
        ("text_config.rms_norm_eps", 1e308),
        ("text_config.hidden_act", "nope"),
        ("text_config.layer_types", ["nope"]),
        ("text_config.rope_parameters.factor", 0),
        ("text_config.rope_parameters.rope_type", "nope"),
        ("text_config.rope_parameters.rope_theta", -1),
        ("text_config.rope_parameters.mrope_section", [6, 5]),
        ("text_config.rope_scaling", {"rope_type": "yarn", "factor": "x"}),
        ("text_config.dtype", "float7"),
        ("dtype", "float7"),
        ("quantization_config", ["x"]),
        ("quantization_config", {"quant_method": "fp8"}),
        ("vision_config.hidden_act", 3),
        ("vision_config.depth", True),
        ("vision_config.patch_size", 0),
        ("vision_config.deepstack_visual_indexes", ["0"]),
        ("image_token_id", None),
        ("tie_word_embeddings", "yes"),
        ("text_config", 3),
        ("vision_config", []),
    ],
)
def test_a_field_of_the_configuration_is_named_before_a_model_is_made(checkpoint: Path, field: str, value) -> None:
    _change(checkpoint / "config.json", field, value)
    with pytest.raises(CheckpointError, match=rf"config\.json: {field}") as found:
        check_config(checkpoint)
    assert len(str(found.value).splitlines()) == 1


@pytest.mark.parametrize("indexes", [[999], [0, 2], [0, 0]])
def test_layers_that_the_vision_tower_does_not_have_are_named(checkpoint: Path, indexes: list[int]) -> None:
    """transformers takes the features of those that it finds, and says nothing of the others."""
    _change(checkpoint / "config.json", "vision_config.deepstack_visual_indexes", indexes)
    with pytest.raises(
        CheckpointError,
        match=r"vision_config.deepstack_visual_indexes is \[.*\]; expected some of .* 2 layers \(0 to 1\)",
    ):
        model_config(checkpoint)


@pytest.mark.parametrize("size", PUBLISHED)
def test_what_is_published_passes(checkpoint: Path, size: str) -> None:
    config = copy.deepcopy(PUBLISHED[size])
    (checkpoint / "config.json").write_text(json.dumps(config))
    assert model_config(checkpoint).text_config.rope_parameters["mrope_section"] == [24, 20, 20]
    # As its authors advise for long inputs.
    config["text_config"]["rope_scaling"] |= {
        "rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 262_144,
    }  # fmt: skip
    (checkpoint / "config.json").write_text(json.dumps(config | {"quantization_config": None}))
    assert model_config(checkpoint).text_config.rope_parameters["factor"] == 3


def test_the_names_that_pass_are_those_of_transformers() -> None:
    with_weights = {"prelu", "xielu"}
    assert set(get_args(Activation)) == ACT2FN.keys() - with_weights
    assert set(get_args(RopeType)) == ROPE_INIT_FUNCTIONS.keys() | {"axial", "default"}


def test_a_configuration_of_which_no_model_can_be_made_is_named_with_its_folder(checkpoint: Path) -> None:
    _change(checkpoint / "config.json", "text_config.pad_token_id", 10**6)  # beyond the vocabulary
    with pytest.raises(CheckpointError, match=r"config\.json: .*pad_token_id"):
        StoredModel.of_headers(checkpoint)


def test_a_tensor_for_which_the_model_has_no_place_is_refused(checkpoint: Path) -> None:
    """The configuration names one vision layer less whose features the language model gets: another model."""
    _change(checkpoint / "config.json", "vision_config.deepstack_visual_indexes", [0])
    with pytest.raises(
        CheckpointError, match=r"6 weights are unexpected, e\.g\. model\.visual\.deepstack_merger_list\.1"
    ):
        StoredModel.of_headers(checkpoint)
    with pytest.raises(CheckpointError, match=r"6 weights are unexpected"):
        load_weights(checkpoint, dtype="auto", attn_implementation="sdpa")


def test_generation_settings_that_are_no_object_are_named(checkpoint: Path) -> None:
    (checkpoint / "generation_config.json").write_text('["x"]')
    with pytest.raises(CheckpointError, match=r"generation_config\.json: holds a list, expected an object"):
        load(checkpoint)


@pytest.mark.parametrize("content", [b"\xff{}", DEEP.encode(), b'{"model_type": NaN}', b"[]", b"1" * 5000])
def test_a_configuration_that_is_no_object_is_named(checkpoint: Path, content: bytes) -> None:
    (checkpoint / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json: "):
        check_config(checkpoint)


@pytest.mark.parametrize(
    ("file", "field", "value"),
    [
        ("tokenizer.json", "model", 3),
        ("tokenizer.json", "model.vocab", ["a"]),
        ("tokenizer.json", "model.merges", [["x", "y", "z"]]),
        ("tokenizer.json", "added_tokens", {"a": 1}),
        ("tokenizer.json", "pre_tokenizer", {"type": "none"}),
        ("tokenizer_config.json", "tokenizer_class", 7),
        ("tokenizer_config.json", "added_tokens_decoder", [1]),
        ("tokenizer_config.json", "pad_token", ["p"]),
        ("preprocessor_config.json", "size", "large"),
        ("preprocessor_config.json", "patch_size", "x"),
        ("preprocessor_config.json", "image_mean", {"r": 1}),
    ],
)
def test_a_part_of_another_type_is_a_sentence_or_harmless(checkpoint: Path, file: str, field: str, value) -> None:
    _change(checkpoint / file, field, value)
    said: list[str] = []
    try:
        Prompt.build(Processor.from_directory(checkpoint).tokenizer)
    except CoordExpError as error:
        said = str(error).splitlines()
    assert len(said) <= 1
    assert said or field not in MUST_FAIL


def test_a_panic_of_another_library_is_its_error_and_an_interrupt_is_not(checkpoint: Path) -> None:
    class PanicException(BaseException):
        """As Rust's libraries raise it."""

    with (
        pytest.raises(CheckpointError, match=r"it does not load \(PanicException: byte 3\)"),
        foreign_errors("it does not load"),
    ):
        raise PanicException("byte 3")
    with pytest.raises(KeyboardInterrupt), foreign_errors("it does not load"):
        raise KeyboardInterrupt
    with pytest.raises(TokenizerError, match="ours"), foreign_errors("it does not load"):
        raise TokenizerError("ours")


@pytest.mark.parametrize(
    "template",
    [
        "{% if %}",
        "{{ 1 / 0 }}",
        "{{ raise_exception('not for you') }}",
        "{{ messages.nothing.more }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(1000000) %}{% endfor %}",
        "{{ '(' * 300 }}{{ " + "(" * 300 + ")" * 300 + " }}",
        "no image",
        "",
    ],
)
def test_a_template_that_does_not_render_is_one_sentence(checkpoint: Path, template: str) -> None:
    (checkpoint / "chat_template.jinja").write_text(template)
    with pytest.raises((CheckpointError, TokenizerError), match="chat template") as found:
        Prompt.build(read_tokenizer(checkpoint))
    assert len(str(found.value).splitlines()) == 1


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10**10 }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='aaaa') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns }}",
        "{% for i in range(99999) %}<|image_pad|>{% endfor %}",
        "{{ '%2000000000d' | format(1) }}",
        "{% generation %}{{ 'a' * 10**10 }}{% endgeneration %}",
    ],
)
def test_a_template_without_end_is_refused_before_it_runs_here(checkpoint: Path, template: str) -> None:
    (checkpoint / "chat_template.jinja").write_text(template)
    with pytest.raises(CheckpointError, match=r"the chat template takes more than 2 s, 1 GiB or"):
        read_tokenizer(checkpoint)


def test_a_template_that_works_is_tried_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried: list[object] = []
    run = chat_template.subprocess.run
    monkeypatch.setattr(chat_template.subprocess, "run", lambda *given, **more: tried.append(1) or run(*given, **more))
    good = "{% for m in messages %}{% generation %}{{ m.content | tojson }}{% endgeneration %}{% endfor %}"
    for _ in range(3):
        check_chat_template(good, where=tmp_path)
        check_chat_template(chat_template.EMBEDDED_TEMPLATE, where=tmp_path)
    assert len(tried) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("r", "4"),
        ("r", 10**12),
        ("lora_alpha", None),
        ("lora_dropout", 2),
        ("use_dora", "no"),
        ("target_modules", {"a": 1}),
        ("rank_pattern", [1]),
        ("base_model_name_or_path", 5),
    ],
)
def test_a_setting_of_an_adapter_is_named_before_anything_is_loaded(adapter: Path, field: str, value) -> None:
    _change(adapter / "adapter_config.json", field, value)
    with pytest.raises(CheckpointError, match=rf"adapter_config\.json: {field}"):
        read_adapter(adapter)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("embed_offset", lambda table: table[:999], "with a row for each of the 1,000 coord tokens"),
        ("embed_offset", lambda table: table.flatten(), "expected \\[rows, width\\]"),
        ("coord_ids", lambda ids: ids[:-1], "coord_ids is torch.int64 \\[999\\]; expected 1000 ids"),
        ("coord_ids", lambda ids: ids.float(), "coord_ids is torch.float32"),
        ("lora_A.weight", lambda table: torch.cat((table, table)), "says r: 4; they do not belong together"),
    ],
)
def test_tables_of_another_rank_or_size_are_named_before_anything_is_loaded(
    adapter: Path, name: str, change, message: str
) -> None:
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    key = next(key for key in tensors if key.endswith(name))
    tensors[key] = change(tensors[key]).contiguous()
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=message):
        read_adapter(adapter)


def test_what_the_package_makes_passes(checkpoint: Path, adapter: Path) -> None:
    assert StoredModel.of_headers(checkpoint).tied
    assert read_adapter(adapter).offset is not None
