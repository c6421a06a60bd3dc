"""Qwen3-VL as large as it is published, with random weights, and images like COCO's; nothing is downloaded.

The tokenizer has the published number of entries and their ids; its words are few, and the others are never written.
"""

import copy
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, PreTrainedModel, Qwen2VLImageProcessorPil, Qwen3VLConfig
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

from coordexp.config import ExperimentConfig, load_config
from coordexp.model.tiny.parts import EMBEDDED_TEMPLATE, SPECIAL_TOKENS, build_tokenizer
from coordexp.train.run import set_up_process
from coordexp.train.setup.base import prepare_base
from coordexp.train.setup.components import Components, build_components
from coordexp.train.setup.door import open_set_of
from tests.benchmarks.coco_lengths import coco_scenes
from tests.support.real_vocabulary import PUBLISHED, narrow_config

from .record import ROOT

SIZES = {name.lower(): config for name, config in PUBLISHED.items()} | {"tiny": narrow_config(tied=True)}
FOLDER = Path(tempfile.gettempdir()) / "coordexp-campaign"  # models and images, made once
_NUM_RANKS = 151_643  # of the published tokenizer, before its added tokens
_NUM_FILES = 64
_CATEGORIES = ("person", "bicycle", "car", "bus", "train", "boat", "bench", "bird", "cat", "dog", "horse", "cup")
# bfloat16 takes minutes on a CPU.
_ON_CPU = ("model.dtype=float32", "training.precision=float32", "data.min_pixels=16384", "data.max_pixels=32768")


@dataclass(frozen=True)
class Setting:
    """What is measured, and on what.

    Attributes:
        size: of the model, a key of :data:`SIZES`.
        batch: images of a microbatch.
        num_images: of the data set.
        num_workers: processes that read images.
        group: whose losses.
        changes: further ``KEY=VALUE`` of the configuration.
    """

    size: str
    batch: int
    num_images: int
    num_workers: int
    group: str = "C"
    changes: tuple[str, ...] = ()

    @staticmethod
    def on(device: str, size: str) -> "Setting":
        """Return what begins on a device; a batch of 8 fits the 4B without checkpointing in 80 GB."""
        if device == "cuda":
            return Setting(size, batch=8, num_images=512, num_workers=10)
        return Setting(size, batch=2, num_images=16, num_workers=0, changes=_ON_CPU)


def configured(setting: Setting) -> ExperimentConfig:
    """Return the configuration of one run: the shipped experiment on COCO, but for what is measured."""
    data = write_scenes(FOLDER, setting.num_images)
    config = load_config(
        ROOT / "experiments" / "coco_qwen3vl_4b.yaml",
        [
            f"experiment.name=campaign-{setting.size}",
            f"experiment.runs_dir={FOLDER / 'runs'}",
            f"model.path={write_model(FOLDER / setting.size, setting.size)}",
            *(f"data.{split}_annotations={data / 'instances.json'}" for split in ("train", "val")),
            *(f"data.{split}_images={data}" for split in ("train", "val")),
            f"data.num_workers={setting.num_workers}",
            f"training.per_device_batch_size={setting.batch}",
            "training.gradient_accumulation_steps=1",
            "cluster.executor=inline",
            "cluster.num_workers=1",
            *setting.changes,
        ],
    )
    return config.run(setting.group, 0)


def components(config: ExperimentConfig) -> Components:
    """Build the parts of a run as a run does. The first call writes the data set and the base."""
    set_up_process(config)
    open_set_of(config)
    prepare_base(config)
    return build_components(config)


def write_model(folder: Path, size: str) -> Path:
    """Write a checkpoint of a published size with random weights, unless it is there."""
    if (folder / "config.json").exists():
        return folder
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = random_model(size)
    published_tokenizer().save_pretrained(folder)
    pixels = {"shortest_edge": 65_536, "longest_edge": 16_777_216}
    Qwen2VLImageProcessorPil(
        image_mean=[0.5] * 3, image_std=[0.5] * 3, patch_size=16, merge_size=2, size=pixels
    ).save_pretrained(folder)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(SIZES[size]))  # as published
    return folder


def random_model(size: str) -> PreTrainedModel:
    """Return a model of a published size on torch's present device."""
    config = Qwen3VLConfig.from_dict(copy.deepcopy(SIZES[size]))
    return AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)


def published_tokenizer() -> Qwen2Tokenizer:
    """Return a tokenizer of few words whose special tokens have the published ids."""
    small = json.loads(build_tokenizer().backend_tokenizer.to_str())["model"]
    vocab = dict(small["vocab"])
    vocab |= {f"<unused {number}>": number for number in range(len(vocab), _NUM_RANKS)}
    merges = [(left, right) for left, right in small["merges"]]
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=merges, pad_token=SPECIAL_TOKENS[0])
    tokenizer.add_tokens(list(SPECIAL_TOKENS), special_tokens=True)
    tokenizer.eos_token = "<|im_end|>"  # only now: the class gives it the first free id
    tokenizer.chat_template = EMBEDDED_TEMPLATE
    return tokenizer


def write_scenes(folder: Path, num_images: int) -> Path:
    """Write JPEGs and annotations with COCO's sides and numbers of objects, unless they are there."""
    made = folder / f"coco-{num_images}"
    if (made / "instances.json").exists():
        return made
    made.mkdir(parents=True, exist_ok=True)
    sizes, counts = coco_scenes(num_images)
    rng = np.random.default_rng(0)
    files = [_picture(made / f"{number}.jpg", size, rng) for number, size in enumerate(sizes[:_NUM_FILES])]
    sizes = [sizes[number % len(files)] for number in range(num_images)]
    owner = np.repeat(np.arange(num_images), counts)
    side = np.array(sizes)[owner]
    low, span = rng.uniform(0, 0.7, (len(owner), 2)) * side, rng.uniform(0.02, 0.3, (len(owner), 2)) * side
    category = rng.integers(len(_CATEGORIES), size=len(owner))
    document = {
        "images": [
            {"id": number, "file_name": files[number % len(files)].name, "width": width, "height": height}
            for number, (width, height) in enumerate(sizes)
        ],
        "categories": [{"id": number, "name": name} for number, name in enumerate(_CATEGORIES)],
        "annotations": [
            {"id": n, "image_id": int(i), "category_id": int(c), "bbox": b, "area": b[2] * b[3], "iscrowd": 0}
            for n, (i, c, b) in enumerate(zip(owner, category, np.hstack([low, span]).tolist(), strict=True))
        ],
    }
    (made / "instances.json").write_text(json.dumps(document))
    return made


def _picture(file: Path, size: Sequence[int], rng: np.random.Generator) -> Path:
    """Write smooth shapes with grain, about as many bytes as a photograph."""
    width, height = size
    coarse = Image.fromarray(rng.integers(0, 256, (15, 20, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    grain = rng.integers(-12, 13, (height, width, 1), dtype=np.int16)
    Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(file, quality=90)
    return file
