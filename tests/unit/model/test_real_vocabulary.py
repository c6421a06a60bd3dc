"""The true vocabulary of Qwen3-VL: ids, and narrow checkpoints of the published form through expansion and loading."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen3VLForConditionalGeneration

from coordexp.cli.main import main
from coordexp.coord_tokens.codec import ints_to_tokens
from coordexp.data.prompt import DEFAULT_PROMPT, Prompt
from coordexp.files import sha256_of_file
from coordexp.model.checkpoint.stored_model import EMBEDDING, HEAD
from coordexp.model.loading import load
from coordexp.model.processor import Processor
from tests.support.real_vocabulary import COORD_IDS, NUM_ENTRIES, NUM_ROWS, WILDCARD_ID, all_weights

DIGITS = range(15, 25)  # "0" to "9" in Qwen's ranks


@pytest.fixture(scope="module")
def expanded(make_narrow, tmp_path_factory):
    """Expand a narrow checkpoint through the command line, once for each combination."""
    root = tmp_path_factory.mktemp("expanded")

    def make(*, tied: bool, structure: str = "native", init: str = "numeric") -> Path:
        path = root / f"{tied}-{structure}-{init}"
        if not path.exists():
            options = ["--output", str(path), "--structure", structure, "--init", init]
            assert main(["expand-vocab", "--model", str(make_narrow(tied=tied)), *options]) == 0
        return path

    return make


COMBINATIONS = [
    (True, "native", "numeric"),
    pytest.param(False, "spec", "mean", marks=pytest.mark.slow),
    pytest.param(True, "spec", "numeric", marks=pytest.mark.slow),
    pytest.param(True, "native", "mean", marks=pytest.mark.slow),
    pytest.param(False, "native", "numeric", marks=pytest.mark.slow),
    pytest.param(False, "spec", "numeric", marks=pytest.mark.slow),
]


def _hashes(path: Path) -> dict[str, str]:
    return {file.name: sha256_of_file(file) for file in path.iterdir()}


def test_it_is_the_true_tokenizer(qwen_tokenizer):
    tokenizer = AutoTokenizer.from_pretrained(qwen_tokenizer)
    assert len(tokenizer) == NUM_ENTRIES
    assert tokenizer.encode("Hello world") == [9707, 1879]
    assert [tokenizer.encode(str(digit)) for digit in range(10)] == [[rank] for rank in DIGITS]
    names = ("<|endoftext|>", "<|im_end|>", "<|object_ref_start|>", "<|box_start|>", "<|box_end|>", "<|image_pad|>")
    assert tokenizer.convert_tokens_to_ids(names) == [151643, 151645, 151646, 151648, 151649, 151655]
    prompt = Prompt.build(tokenizer)
    text = tokenizer.decode(prompt.ids(1))
    vision = "<|vision_start|><|image_pad|><|vision_end|>"
    assert text == f"<|im_start|>user\n{vision}{DEFAULT_PROMPT}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(("tied", "structure", "init"), COMBINATIONS)
def test_ids_and_rows(make_narrow, expanded, tied, structure, init):
    source, output = make_narrow(tied=tied), expanded(tied=tied, structure=structure, init=init)
    tokenizer = AutoTokenizer.from_pretrained(output)
    assert tokenizer.convert_tokens_to_ids("<|coord_*|>") == WILDCARD_ID
    assert tokenizer.convert_tokens_to_ids(ints_to_tokens(range(1000))) == list(COORD_IDS)
    num_tokens = 152_670 if structure == "native" else 152_672
    assert len(tokenizer) == num_tokens
    if structure == "spec":
        assert tokenizer.convert_tokens_to_ids(["<obj_start>", "<obj_end>"]) == [152_670, 152_671]

    before, after = all_weights(source), all_weights(output)
    assert before.keys() == after.keys()
    assert (HEAD in after) is not tied
    tables = [EMBEDDING] if tied else [EMBEDDING, HEAD]
    for name in sorted(before):
        if name not in tables:
            assert torch.equal(before[name], after[name]), name
            continue
        assert before[name].shape == (NUM_ROWS, 64)
        assert after[name].shape == (num_tokens, 64)
        assert after[name].dtype == torch.bfloat16
        assert torch.equal(after[name][:NUM_ENTRIES], before[name][:NUM_ENTRIES])
        expected = _expected_rows(before[name], num_tokens - NUM_ENTRIES, init=init)
        assert torch.equal(after[name][NUM_ENTRIES:], expected)
        # Rows 151669 to 151935 were padding: they belong to the new tokens now.
        padding = before[name][NUM_ENTRIES:]
        assert not (after[name][NUM_ENTRIES:NUM_ROWS] == padding).all(dim=1).any()


def _expected_rows(table: torch.Tensor, num: int, *, init: str) -> torch.Tensor:
    """By the definition, bin after bin: the mean, or a point on the line between the rows of two digits."""
    rows = table[:NUM_ENTRIES].float().mean(dim=0).repeat(num, 1)
    if init == "numeric":
        for k in range(1000):
            place = torch.tensor(k, dtype=torch.float32) / 100 - 0.5  # digit d sits at bin 100 d + 50
            place = min(max(place, torch.tensor(0.0)), torch.tensor(9.0))
            low = min(int(place), 8)
            left, right = table[DIGITS[low]].float(), table[DIGITS[low + 1]].float()
            rows[1 + k] = torch.lerp(left, right, place - low)
    return rows.to(table.dtype)


@pytest.fixture(scope="module")
def inputs(expanded):
    """A picture and a question, as the model takes them."""
    processor = Processor.from_directory(expanded(tied=True))
    picture = torch.arange(64 * 96 * 3, dtype=torch.uint8).view(64, 96, 3).numpy()
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Hello world, 12 boxes"}]}]
    encoded = processor(text=processor.apply_chat_template(messages), images=[picture])
    return encoded | {"pixel_values": encoded["pixel_values"].to(torch.bfloat16)}


@torch.no_grad()
def _logits(model, inputs):
    return model(**inputs).logits


@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_it_loads_in_plain_transformers_with_old_logits_bit_equal(make_narrow, expanded, inputs, tied):
    output = expanded(tied=tied, structure="native" if tied else "spec", init="numeric" if tied else "mean")
    logits = []
    for path in (make_narrow(tied=tied), output):
        model, report = Qwen3VLForConditionalGeneration.from_pretrained(path, dtype="auto", output_loading_info=True)
        assert not any(report.values())
        assert model.dtype == torch.bfloat16
        assert (model.lm_head.weight is model.get_input_embeddings().weight) is tied
        assert model.config.text_config.rope_parameters["rope_theta"] == 5_000_000
        assert model.generation_config.eos_token_id == [151_645, 151_643]
        logits.append(_logits(model, inputs))
    assert torch.equal(logits[0][..., :NUM_ENTRIES], logits[1][..., :NUM_ENTRIES])
    assert not torch.equal(logits[0][..., NUM_ENTRIES:NUM_ROWS], logits[1][..., NUM_ENTRIES:NUM_ROWS])  # control


@pytest.mark.ci
def test_ours_loads_as_plain_transformers_does(expanded, inputs):
    loaded = load(expanded(tied=True))
    assert loaded.vocab.coord_ids == COORD_IDS
    assert (loaded.vocab.structure, loaded.vocab.wildcard_id) == ("native", WILDCARD_ID)
    plain = Qwen3VLForConditionalGeneration.from_pretrained(expanded(tied=True), dtype="auto")
    assert torch.equal(_logits(loaded.model, inputs), _logits(plain, inputs))


@pytest.mark.ci
def test_the_same_bytes_in_every_run_and_twice_is_once(make_narrow, expanded, tmp_path, capsys):
    first = expanded(tied=True)
    capsys.readouterr()
    again, twice = tmp_path / "again", tmp_path / "twice"
    assert main(["expand-vocab", "--model", str(make_narrow()), "--output", str(again)]) == 0
    out = capsys.readouterr().out
    for fact in (str(again), "1001", "151669", "152670", "151670..152669"):
        assert fact in out
    assert _hashes(again) == _hashes(first)
    assert main(["expand-vocab", "--model", str(first), "--output", str(twice)]) == 0
    assert "already" in capsys.readouterr().out
    assert _hashes(twice) == _hashes(first)


@pytest.mark.ci
def test_files_keep_their_published_form(make_narrow, expanded):
    source, output = make_narrow(), expanded(tied=True)
    for name in ("preprocessor_config.json", "video_preprocessor_config.json", "generation_config.json"):
        assert (output / name).read_bytes().strip() == (source / name).read_bytes().strip()
    configs = [json.loads((path / "config.json").read_text()) for path in (source, output)]
    assert configs[1]["text_config"].pop("vocab_size") == 152_670
    assert configs[0]["text_config"].pop("vocab_size") == NUM_ROWS
    assert configs[0] == configs[1]
    old, new = (AutoTokenizer.from_pretrained(path) for path in (source, output))
    settings = json.loads((output / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == 262_144
    assert {"local_files_only", "is_local"}.isdisjoint(settings)
    text = "<think>two</think> <|box_start|>1 234 éü 你好\n\n  x"
    assert new.encode(text) == old.encode(text)
    assert new.decode(new.encode(text), skip_special_tokens=True) == old.decode(
        old.encode(text), skip_special_tokens=True
    )
    assert new.chat_template == old.chat_template
