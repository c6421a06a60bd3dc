import json
import subprocess
import sys

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from coordexp.errors import CheckpointError
from coordexp.model.load import load
from coordexp.model.merge import peft_tokens
from coordexp.model.merge.parity import compare, default_samples, logits_of
from coordexp.model.merge.peft_tokens import export_peft_tokens

DELTA = "base_model.model.{}.token_adapter.trainable_tokens_delta"
EMBED, HEAD = DELTA.format("model.language_model.embed_tokens"), DELTA.format("lm_head")
EXPRESSIBLE = [(True, True, "lora"), (True, True, "dora"), (False, True, "dora"), (False, False, "lora")]

SCRIPT = """
import sys
sys.modules['coordexp'] = None
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText
for base, adapter in zip(sys.argv[1::2], sys.argv[2::2]):
    model = PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(base), adapter).eval()
    sample = load_file(adapter + '/expected.st')
    expected = sample.pop('logits')
    with torch.no_grad():
        logits = model(**sample).logits
    assert (logits - expected).abs().max() < 1e-4 * expected.abs().max(), adapter
    with torch.no_grad(), model.disable_adapter():
        plain = model(**sample).logits
    assert (plain - expected).abs().max() > 1e-2 * expected.abs().max(), adapter
assert not [name for name in sys.modules if name.startswith('coordexp.')]
print('loaded', len(sys.argv) // 2)
"""


@pytest.mark.parametrize(
    ("tied", "tie_head", "tuning"),
    [*EXPRESSIBLE[1::2], *(pytest.param(*one, marks=pytest.mark.slow) for one in EXPRESSIBLE[::2])],
)
def test_stock_peft_says_the_same(make_base, make_adapter, tmp_path, tied, tie_head, tuning):
    base = make_base(tied=tied)
    adapter = make_adapter(base, tuning=tuning, tie_head=tie_head)
    report = export_peft_tokens(adapter, tmp_path / "out")
    assert report.format == "peft-tokens"
    assert (report.tie_word_embeddings, report.num_offset_rows, report.dtype) == (tied, 1000, "float32")

    ours = load(base, adapter)
    sample = default_samples(ours.processor)
    expected = logits_of(ours.model, sample)
    stock = PeftModel.from_pretrained(load(base).model, str(tmp_path / "out"))
    agreement = compare(expected, logits_of(stock, sample), stored="float32")
    assert agreement.max_abs_diff <= 1e-5 * agreement.max_abs_logit
    assert agreement.max_abs_diff == pytest.approx(report.max_abs_logit_diff, abs=1e-5)

    tensors = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert not any("offset" in name for name in tensors)
    assert {name for name in tensors if "token_adapter" in name} == ({EMBED} if tied else {EMBED, HEAD})
    table = load_file(base / "model.safetensors")["model.language_model.embed_tokens.weight"]
    offset = load_file(adapter / "adapter_model.safetensors")["base_model.model.coord_offset_adapter.embed_offset"]
    assert torch.equal(tensors[EMBED], table[641:1641] + offset)
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    layers = ["embed_tokens"] if tied else ["embed_tokens", "lm_head"]
    assert config["trainable_token_indices"] == {layer: list(range(641, 1641)) for layer in layers}
    assert config["modules_to_save"] is None
    assert config["base_model_name_or_path"] == str(base)


def test_one_table_cannot_hold_two_offsets(make_base, make_adapter, tmp_path):
    with pytest.raises(CheckpointError, match=r"one row for both, so only --format hf can express it"):
        export_peft_tokens(make_adapter(make_base(), tuning="lora", tie_head=False), tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"no coord offsets, so it is an adapter of stock PEFT as it is"):
        export_peft_tokens(make_adapter(make_base(), tie_head=None), tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"has no coord tokens yet.*expand-vocab"):
        export_peft_tokens(make_adapter(make_base(), tuning="lora"), tmp_path / "out", base=make_base(structure=None))
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_export_fails_and_leaves_nothing(make_base, make_adapter, tmp_path, monkeypatch):
    def shifted(tensors, *args, **kwargs):
        return save_file(tensors | {EMBED: tensors[EMBED].roll(1, dims=0)}, *args, **kwargs)

    monkeypatch.setattr(peft_tokens, "save_file", shifted)
    with pytest.raises(CheckpointError, match=r"disagrees with the model by .* nothing was written"):
        export_peft_tokens(make_adapter(make_base(), tuning="lora"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_it_overwrites_an_adapter_only(make_base, make_adapter, tmp_path):
    adapter = make_adapter(make_base(structure="spec"), tuning="lora")
    assert export_peft_tokens(adapter, tmp_path / "out").num_offset_rows == 1002
    with pytest.raises(CheckpointError, match=r"exists; give another directory"):
        export_peft_tokens(adapter, tmp_path / "out")
    export_peft_tokens(adapter, tmp_path / "out", overwrite=True, base=make_base(structure="spec"))
    with pytest.raises(CheckpointError, match=r"something else than a checkpoint"):
        export_peft_tokens(adapter, tmp_path, overwrite=True)


@pytest.mark.slow
def test_it_loads_without_coordexp(make_base, make_adapter, tmp_path):
    arguments: list[str] = []
    for tied, tie_head, tuning in EXPRESSIBLE:
        base, output = make_base(tied=tied), tmp_path / f"{tied}-{tie_head}-{tuning}"
        adapter = make_adapter(base, tuning=tuning, tie_head=tie_head)
        export_peft_tokens(adapter, output)
        loaded = load(base, adapter)
        samples = default_samples(loaded.processor)
        save_file({"logits": logits_of(loaded.model, samples)[0], **samples[0]}, output / "expected.st")
        arguments += [str(base), str(output)]
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, *arguments]
    done = subprocess.run(command, check=True, timeout=240, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "loaded 4"
