"""A small Qwen3-VL with images in the batch, adapted on language model, vision tower and aligner."""

import copy
import functools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from peft import PeftModel
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from coordexp.coord_tokens.codec import int_to_token
from coordexp.coord_tokens.offset_adapter import active_offset, install_coord_offset_adapter
from coordexp.coord_tokens.vocab import expand_vocab
from coordexp.data.prompt import DEFAULT_PROMPT
from coordexp.data.shapes import draw_scene
from coordexp.model.processor import Processor
from coordexp.model.tiny.parts import build_image_processor, build_tokenizer
from tests.support.offsets import COORD_IDS, tokenizer, wrapped
from tests.support.tiny_model import build_shallow

WORLD_SIZE = 2
Sample = tuple[str, Image.Image]
Batch = dict[str, Tensor]


@functools.cache
def processor() -> Processor:
    """Return the tiny processor, its tokenizer expanded."""
    expanded = copy.deepcopy(tokenizer())
    expanded.padding_side = "right"
    return Processor(expanded, build_image_processor())


def make_base(*, tied: bool = True, dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> nn.Module:
    """Return a random expanded base."""
    own = build_tokenizer()
    model = build_shallow(own, tie_word_embeddings=tied)
    expand_vocab(model, own, init="numeric")
    model.set_attn_implementation(attention)
    return model.to(dtype).eval()


def adapted(base: nn.Module, *, tie_head: bool = True, tuning: str = "lora", dtype: str = "auto") -> PeftModel:
    """Install and wrap; offsets and adapters get small random values, so that every part has a gradient."""
    install_coord_offset_adapter(base, coord_ids=COORD_IDS, tie_head=tie_head, dtype=dtype)
    model = wrapped(base, tuning=tuning)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in trainable(model).values():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator).to(parameter)
    return model


def samples() -> list[Sample]:
    """Return four conversations about an image each; the last two hold no coord token."""
    boxes = ["".join(int_to_token(k) for k in bins) for bins in ((12, 500, 340, 999), (0, 71, 72, 640))]
    answers = [f"red circle<|box_start|>{box}<|box_end|>" for box in boxes] + ["green square", "nothing else is here"]
    return [_conversation(answer, seed) for seed, answer in enumerate(answers)]


def encode(chosen: Sequence[Sample]) -> Batch:
    """Return model inputs with labels everywhere but at image and padding tokens."""
    batch = dict(processor()(text=[text for text, _ in chosen], images=[image for _, image in chosen]))
    unsupervised = (batch["mm_token_type_ids"] == 1) | (batch["attention_mask"] == 0)
    return batch | {"labels": batch["input_ids"].masked_fill(unsupervised, -100)}


def logits(model: nn.Module, batch: Batch) -> Tensor:
    """Return logits of a batch."""
    return model(**{key: value for key, value in batch.items() if key != "labels"}, use_cache=False).logits


def loss_sum(model: nn.Module, batch: Batch) -> Tensor:
    """Return the summed cross-entropy, to be divided by the count of all ranks."""
    predicted, targets = logits(model, batch)[:, :-1], batch["labels"][:, 1:]
    return F.cross_entropy(predicted.flatten(0, 1).float(), targets.flatten(), ignore_index=-100, reduction="sum")


def num_targets(batch: Batch) -> int:
    """Count supervised tokens."""
    return int((batch["labels"][:, 1:] >= 0).sum())


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by name, without the prefix of DDP."""
    return {name.removeprefix("module."): p for name, p in model.named_parameters() if p.requires_grad}


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of every gradient; a parameter without one is left out."""
    return {name: p.grad.clone() for name, p in trainable(model).items() if p.grad is not None}


def changed_rows(model: nn.Module, base: nn.Module) -> Iterator[int]:
    """Yield the ids whose embedding differs between two models."""
    rows = base.get_input_embeddings().weight.shape[0]
    ids = torch.arange(rows)
    with torch.no_grad():
        same = (model.get_input_embeddings()(ids) == base.get_input_embeddings()(ids)).all(dim=1)
    yield from (~same).nonzero().flatten().tolist()


def offset_ids(model: nn.Module) -> list[int]:
    """Return the ids an adapter lists."""
    return active_offset(model).coord_ids.tolist()


def _conversation(answer: str, seed: int) -> Sample:
    picture, _ = draw_scene(np.random.default_rng(seed))
    content = [{"type": "image"}, {"type": "text", "text": DEFAULT_PROMPT}]
    prompt = processor().apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    return f"{prompt}{answer}<|im_end|>", picture
