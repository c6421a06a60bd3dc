"""The embedded base: a small Qwen3-VL pre-trained on text-number coordinates.

``python -m coordexp.model.tiny.pretrain`` reproduces ``tiny_base/`` from a seed. It draws shapes, writes each object as
``<|object_ref_start|>red circle<|box_start|>120 340 560 780<|box_end|>`` (three digits per coordinate, as ordinary
text) and trains on that text. So fine-tuning on coord tokens starts from a model that sees and that can write
positions, as a released Qwen3-VL can.
"""

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import Qwen3VLForConditionalGeneration
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

from coordexp.coord_tokens.codec import encode
from coordexp.data.batch import Batch, EncodedSample, collate, predicts_label
from coordexp.data.images.patches import ImageSpec, pixel_values, to_patches
from coordexp.data.prompt import Prompt
from coordexp.data.shapes import CATEGORIES, draw_scene
from coordexp.model.checkpoint.directory import TINY_BASE
from coordexp.model.tiny.parts import build_image_processor, build_model, build_tokenizer, save_base

_EXAMPLE_STREAM = 77


@dataclass(frozen=True)
class Phase:
    """A part of pre-training with its own optimizer: linear warm-up, then a cosine over ``horizon`` steps.

    A phase that is shorter than its horizon ends while the rate is still high. The next phase lowers it.
    """

    steps: int
    learning_rate: float
    horizon: int
    warmup_steps: int
    final_fraction: float = 0.02

    def rate_factor(self, step: int) -> float:
        """Return the factor of the learning rate at a step, from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        progress = min(1.0, (step - self.warmup_steps) / max(1, self.horizon - self.warmup_steps))
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return self.final_fraction + (1 - self.final_fraction) * cosine


@dataclass(frozen=True)
class PretrainSpec:
    """How the base is trained; the defaults made the shipped checkpoint."""

    phases: tuple[Phase, ...] = (
        Phase(steps=8_000, learning_rate=1.5e-3, horizon=13_000, warmup_steps=200),
        Phase(steps=3_000, learning_rate=1e-3, horizon=3_000, warmup_steps=100),
    )
    batch_size: int = 16
    num_scenes: int = 24_000
    weight_decay: float = 0.01
    seed: int = 0


def pretrain(spec: PretrainSpec) -> Qwen3VLForConditionalGeneration:
    """Train the base from random weights, and return it in float32 and evaluation mode. Prints a line per 100 steps."""
    tokenizer = build_tokenizer()
    pad_id = tokenizer.get_vocab()["<|endoftext|>"]
    model = build_model(tokenizer, seed=spec.seed)
    image_spec = ImageSpec.from_processor(build_image_processor())
    samples = example_scenes(tokenizer, image_spec, num_scenes=spec.num_scenes)
    model.train()
    for index, phase in enumerate(spec.phases):
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=phase.learning_rate, betas=(0.9, 0.98), weight_decay=spec.weight_decay
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, phase.rate_factor)
        started = time.monotonic()
        batches = _batches(samples, phase.steps, batch_size=spec.batch_size, seed=spec.seed + index)
        for step, batch_samples in enumerate(batches, start=1):
            batch = collate(batch_samples, pad_id=pad_id, image_token_id=model.config.image_token_id)
            loss = F.cross_entropy(*supervised_logits(model, batch, image_spec))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if step % 100 == 0:
                seconds = f"{time.monotonic() - started:.0f} s"
                print(f"phase {index + 1} step {step}/{phase.steps}  loss {loss.item():.4f}  {seconds}", flush=True)
    return model.eval()


def _batches(
    samples: list[EncodedSample], num_batches: int, *, batch_size: int, seed: int
) -> Iterator[list[EncodedSample]]:
    """Yield batches of samples of similar length, which need less padding than random ones."""
    rng = np.random.default_rng(seed)
    pool: list[list[EncodedSample]] = []
    for _ in range(num_batches):
        if not pool:
            indices: list[int] = rng.choice(len(samples), size=batch_size * 16, replace=False).tolist()
            by_length = sorted((samples[index] for index in indices), key=lambda sample: sample.length)
            pool = [by_length[start : start + batch_size] for start in range(0, len(by_length), batch_size)]
            rng.shuffle(pool)
        yield pool.pop()


def supervised_logits(
    model: Qwen3VLForConditionalGeneration, batch: Batch, image_spec: ImageSpec
) -> tuple[Tensor, Tensor]:
    """Return the logits ``[T, V]`` at supervised positions of a batch, and the true tokens ``[T]``."""
    logits_TV = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        mm_token_type_ids=batch.mm_token_type_ids,
        pixel_values=pixel_values(batch.patches, image_spec),
        image_grid_thw=batch.image_grid_thw,
        logits_to_keep=predicts_label(batch.labels),
    ).logits
    return logits_TV, batch.targets


def example_scenes(
    tokenizer: Qwen2Tokenizer, spec: ImageSpec, *, num_scenes: int, stream: int = _EXAMPLE_STREAM
) -> list[EncodedSample]:
    """Draw scenes that no generated data set has, and encode them with the text that the base learns to write."""
    prompt = Prompt.build(tokenizer)
    samples = []
    for index in range(num_scenes):
        picture, shapes = draw_scene(np.random.default_rng([stream, index]))
        patches, grid = to_patches(picture, spec)
        objects = sorted((_norm(shape.box_px_xywh, picture.size), CATEGORIES[shape.category]) for shape in shapes)
        text = ""
        for box, desc in sorted(objects, key=_reading_order):
            numbers = " ".join(f"{k:03d}" for k in encode(box).tolist())
            text += f"<|object_ref_start|>{desc}<|box_start|>{numbers}<|box_end|>"
        samples.append(
            EncodedSample(
                prompt_ids=prompt.ids(spec.num_tokens(width=picture.width, height=picture.height)),
                target_ids=tokenizer.encode(text + "<|im_end|>", add_special_tokens=False),
                patches=patches,
                grid=grid,
                boxes_norm_xyxy=np.zeros((0, 4), np.float32),
                coord_index=np.zeros((0, 4), np.int64),
                image_id=index,
            )
        )
    return samples


def _reading_order(drawn_object: tuple[tuple[float, ...], str]) -> tuple[float, float]:
    """Return the key that sorts objects from top to bottom, then from left to right."""
    x1, y1, _, _ = drawn_object[0]
    return y1, x1


def _norm(box_px_xywh: tuple[int, int, int, int], size: tuple[int, int]) -> tuple[float, ...]:
    """Return a box as fractions of the image, xyxy."""
    x, y, w, h = box_px_xywh
    width, height = size
    return x / width, y / height, (x + w) / width, (y + h) / height


def main(argv: Sequence[str] | None = None) -> int:
    """Pre-train and write the embedded base."""
    parser = argparse.ArgumentParser(prog="python -m coordexp.model.tiny.pretrain", description=main.__doc__)
    parser.add_argument("--output", type=Path, default=TINY_BASE)
    parser.add_argument("--seed", type=int, default=PretrainSpec().seed)
    options = parser.parse_args(argv)
    model = pretrain(PretrainSpec(seed=options.seed))
    # Stored in bfloat16, so 3.9 MB instead of 7.8. Training starts from these rounded weights too.
    save_base(options.output, model.bfloat16(), build_tokenizer())
    print(f"wrote {options.output}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
