"""Which ids an adapter takes, on which models, and what it says about the others."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AddedToken
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

from coordexp.coord_tokens.codec import DEFAULT_COORD_IDS
from coordexp.coord_tokens.offset_adapter import active_offset, install_coord_offset_adapter
from coordexp.coord_tokens.vocab import expand_vocab
from coordexp.errors import ConfigError, TokenizerError
from coordexp.model.tiny.parts import SPECIAL_TOKENS, build_model
from tests.support.offsets import COORD_IDS, FIRST, fresh, installed, tokenizer, wrapped


def test_ids_may_be_a_range_a_mapping_or_a_list():
    for ids in (COORD_IDS, {"start": FIRST, "end": FIRST + 999}, list(COORD_IDS), tuple(COORD_IDS)):
        adapter = active_offset(installed(coord_ids=ids))
        assert (adapter.first_id, adapter.num_ids) == (FIRST, 1000)
        assert adapter.coord_ids.tolist() == list(COORD_IDS)


@pytest.fixture(scope="module")
def of_qwens_size():
    """A tokenizer with Qwen3-VL's 151,669 entries, and a model with its 151,936 rows (of 128, not 2,560)."""
    words = Qwen2Tokenizer(vocab={f"w{i}": i for i in range(151_643)}, merges=[], pad_token=None)
    words.add_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    assert len(words) == 151_669
    small = build_model(words)
    small.resize_token_embeddings(151_936, mean_resizing=False)
    return small, words


def test_the_default_is_qwen3_vls_coord_tokens_without_the_wildcard(of_qwens_size):
    model, words = of_qwens_size
    assert (DEFAULT_COORD_IDS[0], DEFAULT_COORD_IDS[-1], len(DEFAULT_COORD_IDS)) == (151_670, 152_669, 1000)
    with pytest.raises(TokenizerError, match="152669.*151936"):
        install_coord_offset_adapter(model)
    vocab = expand_vocab(model, words, init="mean")
    assert (vocab.wildcard_id, vocab.coord_ids) == (151_669, DEFAULT_COORD_IDS)
    adapter = install_coord_offset_adapter(model, tokenizer=words)
    with torch.no_grad():
        adapter.embed_offset.fill_(1.0)
        table, ids = model.get_input_embeddings(), torch.tensor([151_668, 151_669, 151_670, 152_669])
        moved = (table(ids) - table.weight[ids]).abs().sum(dim=1) > 0
    assert moved.tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    ("ids", "facts"),
    [
        ([], "empty"),
        (range(5, 5), "empty"),
        ([5, 5], "distinct"),
        ([-1], "not negative"),
        ([5.0, 6.0], r"5\.0.*integer"),
        ([FIRST + 0.5], r"641\.5.*integer"),
        ([True, 2], "True.*integer"),
        (["641"], "'641'.*integer"),
        ("641", "'641'.*range.*list.*mapping"),
        (641, "641.*range"),
        (torch.tensor([641]), "tensor"),
        ({"first": 1}, "first.*start.*end"),
        ({"start": 1}, "start.*start.*end"),
        ({"start": 1, "end": 2, "step": 1}, "step.*start.*end"),
        ({"start": 1, 5: 2}, "5.*start.*end"),
        ({"start": 9, "end": 3}, "9.*3"),
        ({"start": 1.0, "end": 3}, r"1\.0.*integer"),
        ({"start": -3, "end": 3}, "not negative"),
        ([1641], "1641.*1641 rows"),
        (range(FIRST - 1, FIRST + 1000), r"640.*<\|coord_\*\|>"),
        (range(FIRST - 1, FIRST + 999), "640"),
        ([5, 6], r"\b5\b"),
    ],
)
def test_wrong_ids_are_refused_in_one_sentence_and_leave_the_model_alone(ids, facts):
    model = fresh()
    with pytest.raises(TokenizerError, match=facts) as caught:
        install_coord_offset_adapter(model, coord_ids=ids, tokenizer=tokenizer())
    assert str(caught.value).startswith("coord_offset.ids")
    assert "\n" not in str(caught.value)
    assert active_offset(model) is None
    assert model.get_input_embeddings().weight.requires_grad
    assert "save_pretrained" not in vars(model)


def test_ids_are_checked_against_the_configuration_and_both_tables():
    model = fresh()
    model.config.text_config.vocab_size = 1640
    with pytest.raises(TokenizerError, match=r"1640.*config\.vocab_size.*1640"):
        install_coord_offset_adapter(model, coord_ids=COORD_IDS)
    model = fresh(tied=False)
    head = torch.nn.Linear(128, 1640, bias=False)
    model.set_output_embeddings(head)
    with pytest.raises(TokenizerError, match="1640.*1640 rows"):
        install_coord_offset_adapter(model, coord_ids=COORD_IDS)


def test_it_is_installed_once():
    with pytest.raises(ConfigError, match="coord_offset_adapter"):
        install_coord_offset_adapter(installed(), coord_ids=COORD_IDS)


@pytest.mark.parametrize("wrong_order", ["around", "inside", "ours"])
def test_it_is_installed_before_peft(wrong_order):
    around = get_peft_model(fresh(), LoraConfig(target_modules=["q_proj"]))
    target = {"around": around, "inside": around.get_base_model(), "ours": wrapped(fresh())}[wrong_order]
    with pytest.raises(ConfigError, match=r"PEFT.*(Peft|Qwen3VL)"):
        install_coord_offset_adapter(target, coord_ids=COORD_IDS)
    assert not any("coord_offset" in name for name, _ in around.named_parameters())


@pytest.mark.parametrize("dtype", ["float23", "FLOAT32", torch.int64, None])
def test_a_dtype_that_is_none_is_refused(dtype):
    with pytest.raises(ConfigError, match=r"coord_offset\.dtype.*auto, float32, bfloat16"):
        installed(dtype=dtype)
