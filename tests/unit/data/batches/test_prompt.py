"""The prompt is the chat template's, with exactly one image."""

import copy

import pytest

from coordexp.data.batches.prompt import DEFAULT_PROMPT, Prompt
from coordexp.errors import TokenizerError


def test_the_prompt_word_by_word(native, prompt):
    tokenizer = native[0]
    assert tokenizer.decode(prompt.ids(3)) == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|image_pad|><|image_pad|><|vision_end|>"
        f"{DEFAULT_PROMPT}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert len(prompt) + 3 == len(prompt.ids(3))
    assert tokenizer.convert_ids_to_tokens(prompt.image_token_id) == "<|image_pad|>"


def test_another_text(native):
    prompt = Prompt.build(native[0], "Find cats.")
    assert "Find cats.<|im_end|>" in native[0].decode(prompt.ids(1))


def test_no_chat_template(native):
    tokenizer = copy.deepcopy(native[0])
    tokenizer.chat_template = None
    with pytest.raises(TokenizerError, match="no chat template"):
        Prompt.build(tokenizer)


@pytest.mark.parametrize(
    "template",
    ["{% for m in messages %}{{ m.role }}{% endfor %}", "<|image_pad|><|image_pad|>"],
    ids=["no image", "two images"],
)
def test_a_template_must_place_one_image(native, template):
    tokenizer = copy.deepcopy(native[0])
    tokenizer.chat_template = template
    with pytest.raises(TokenizerError, match="exactly once"):
        Prompt.build(tokenizer)


def test_an_image_token_in_the_text_is_refused(native):
    with pytest.raises(TokenizerError, match="exactly once"):
        Prompt.build(native[0], "What is <|image_pad|>?")
