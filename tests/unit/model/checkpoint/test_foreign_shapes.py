"""Checkpoints of another shape than they say, or with code in them."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import Qwen3VLForConditionalGeneration

from coordexp.errors import CheckpointError
from coordexp.model.loading import load
from tests.support.checkpoints import edit_json
from tests.support.real_vocabulary import PUBLISHED


def test_a_configuration_of_another_size_is_refused_before_its_weights_are_made(make_base, tmp_path, monkeypatch):
    """Otherwise transformers fills 4.4 billion numbers with random ones, and warns only afterwards."""
    monkeypatch.setattr(Qwen3VLForConditionalGeneration, "from_pretrained", lambda *_, **__: pytest.fail("made"))
    other = Path(shutil.copytree(make_base(), tmp_path / "other"))
    (other / "config.json").write_text(json.dumps(PUBLISHED["4B"]))
    images = other / "preprocessor_config.json"
    edit_json(images, patch_size=16)
    with pytest.raises(CheckpointError, match=r"other.*\d+ weights.*missing.*model"):
        load(other)
    shutil.copy(make_base() / images.name, images)
    (other / "config.json").write_text(
        (make_base() / "config.json").read_text().replace('"hidden_size": 128', '"hidden_size": 64')
    )
    with pytest.raises(CheckpointError, match=r"other.*\d+ weights.*mismatched.*\[\d.*\[\d"):
        load(other)


def test_code_in_a_checkpoint_is_not_run(make_base, tmp_path):
    target = tmp_path / "base"
    shutil.copytree(make_base(), target)
    (target / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Evil: pass\n")
    for name, kinds in (
        ("config.json", ("AutoConfig", "AutoModelForImageTextToText")),
        ("tokenizer_config.json", ("AutoTokenizer",)),
        ("preprocessor_config.json", ("AutoImageProcessor", "AutoProcessor")),
    ):
        edit_json(target / name, auto_map=dict.fromkeys(kinds, "evil.Evil"))
    assert load(target).vocab is not None
    assert not (tmp_path / "ran").exists()
