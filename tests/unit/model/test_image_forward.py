"""The forward over images is transformers' own, with images of several sizes, in every direction."""

import copy

import pytest
import torch
from transformers import GenerationConfig

from coordexp.model.image_forward import ImageLayout, install_image_forward, patch_product
from coordexp.model.tiny.parts import build_model, build_tokenizer

SIZES = ((4, 6), (8, 4), (4, 6), (4, 4), (6, 4))  # two of one size, and two more of as many patches


@pytest.fixture(scope="module")
def models():
    """A stock model, and its copy with our forward."""
    stock = build_model(build_tokenizer())
    ours = copy.deepcopy(stock)
    install_image_forward(ours)
    return stock, ours


def _inputs(config, *, pad_left=False, with_mask=True):
    """A sequence for each image: two tokens, the image, some more; padded."""
    generator = torch.Generator().manual_seed(0)
    image = config.image_token_id
    rows = [[5, 6] + [image] * (h * w // 4) + list(range(7, 9 + at)) for at, (h, w) in enumerate(SIZES)]
    length = max(map(len, rows))
    pads = [[0] * (length - len(row)) for row in rows]
    ids = torch.tensor([pad + row if pad_left else row + pad for row, pad in zip(rows, pads, strict=True)])
    ones = [[1] * len(row) for row in rows]
    mask = torch.tensor([pad + one if pad_left else one + pad for one, pad in zip(ones, pads, strict=True)])
    num_patches = sum(h * w for h, w in SIZES)
    inputs = {
        "input_ids": ids,
        "mm_token_type_ids": (ids == image).long(),
        "image_grid_thw": torch.tensor([[1, h, w] for h, w in SIZES]),
        "pixel_values": torch.randn(num_patches, 3 * 2 * 8 * 8, generator=generator),
    }
    return inputs | ({"attention_mask": mask} if with_mask else {}), mask


def _step(model, inputs, mask, **keys):
    model.zero_grad()
    logits = model(**inputs, **keys).logits[mask.bool()]
    logits.square().mean().backward()
    return logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("knows_layout", [True, False])
def test_logits_and_gradients_are_those_of_transformers(models, attention, knows_layout):
    for model in models:
        model.set_attn_implementation(attention)
    stock, ours = models
    inputs, mask = _inputs(stock.config)
    rows = (inputs["input_ids"].flatten() == stock.config.image_token_id).nonzero().squeeze(1)
    keys = {"image_layout": ImageLayout(SIZES, rows)} if knows_layout else {}
    expected, expected_gradients = _step(stock, inputs, mask)
    found, gradients = _step(ours, inputs, mask, **keys)
    assert torch.equal(found, expected)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        assert torch.equal(gradients[name], gradient), name


def test_with_gradient_checkpointing_too(models):
    stock, ours = models
    inputs, mask = _inputs(stock.config)
    expected = _step(stock, inputs, mask)[1]
    checkpointed = copy.deepcopy(ours).train()
    checkpointed.activation_checkpointing_enable({"use_reentrant": False})
    for name, gradient in _step(checkpointed, inputs, mask)[1].items():
        torch.testing.assert_close(gradient, expected[name], msg=name)


def test_generation_is_that_of_transformers(models):
    stock, ours = models
    inputs, _ = _inputs(stock.config, pad_left=True)
    config = GenerationConfig(max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.equal(
        ours.generate(**inputs, generation_config=config), stock.generate(**inputs, generation_config=config)
    )


def test_features_are_those_of_transformers_with_all_images_of_a_size_in_one_call(models, monkeypatch):
    stock, ours = models
    inputs, _ = _inputs(stock.config)
    images = inputs["pixel_values"], inputs["image_grid_thw"]
    calls = []
    attend = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda query, *args, **keys: calls.append(query.shape[:3:2]) or attend(query, *args, **keys),
    )
    for model in models:
        model.set_attn_implementation("sdpa")
    found = ours.model.get_image_features(*images)
    assert calls == [(3, 24), (1, 32), (1, 16)] * 3
    expected = stock.model.get_image_features(*images)
    assert len(found.pooler_output) == len(SIZES)
    for ours_I, theirs_I in zip(
        (found.pooler_output, *found.deepstack_features),
        (expected.pooler_output, *expected.deepstack_features),
        strict=True,
    ):
        assert all(torch.equal(a, b) for a, b in zip(ours_I, theirs_I, strict=True))


def test_text_alone_is_transformers_own(models):
    stock, ours = models
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(ours(input_ids=ids).logits, stock(input_ids=ids).logits)


def test_padding_on_the_right_needs_no_mask(models):
    """A causal model never looks at what comes behind."""
    _, ours = models
    inputs, mask = _inputs(ours.config)
    positions, _ = ours.model.get_rope_index(**{k: v for k, v in inputs.items() if k != "pixel_values"})
    expected = ours(**inputs, position_ids=positions).logits
    del inputs["attention_mask"]
    found = ours(**inputs, position_ids=positions).logits
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], rtol=1e-5, atol=1e-6)


def test_images_that_do_not_fit_their_tokens_are_refused(models):
    _, ours = models
    inputs, _ = _inputs(ours.config)
    rows = (inputs["input_ids"].flatten() == ours.config.image_token_id).nonzero().squeeze(1)
    with pytest.raises(ValueError, match="expected 30 image tokens .*, got 29"):
        ours(**inputs, image_layout=ImageLayout(SIZES, rows[1:]))


def test_the_attention_sees_each_image_alone(models):
    """Negative control: another first image changes the tokens of its own sequence, and no other's."""
    _, ours = models
    inputs, _ = _inputs(ours.config)
    before = ours(**inputs).logits
    inputs["pixel_values"][: SIZES[0][0] * SIZES[0][1]] += 1
    after = ours(**inputs).logits
    assert not torch.equal(after[0], before[0])
    assert torch.equal(after[1:], before[1:])


def test_one_product_is_the_convolution_of_whole_patches(models):
    stock, ours = models
    convolution = stock.model.visual.patch_embed.proj
    patches = torch.randn(7, *convolution.weight.shape[1:], generator=torch.Generator().manual_seed(0))
    expected = convolution(patches)
    torch.testing.assert_close(patch_product(patches, convolution.weight, convolution.bias), expected)
    on_meta = copy.deepcopy(ours.model.visual.patch_embed.proj).to("meta")  # as on every device but a CPU
    assert on_meta(patches.to("meta")).shape == expected.shape
