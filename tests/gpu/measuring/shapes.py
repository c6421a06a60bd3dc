"""Qwen3-VL as large as it is published, with random weights made on the device, and images like COCO's.

Nothing is downloaded. The tokenizer has the published number of entries and their ids; its words are few, and the
entries that none of them needs are never written.
"""

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import Qwen2VLImageProcessorPil, Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

from coordexp.config import ExperimentConfig, group_config, load_config
from coordexp.coord_tokens.offset_adapter import DTYPES
from coordexp.model.loading import check_attention
from coordexp.model.processor import Processor
from coordexp.model.tiny.parts import EMBEDDED_TEMPLATE, SPECIAL_TOKENS, build_tokenizer
from coordexp.train.forward import TermForward, check_adapter_ids
from coordexp.train.setup.components import Components, param_groups, with_adapters
from coordexp.train.setup.encoding import build_encoding, read_split
from coordexp.train.setup.weighted_terms import build_criterion
from tests.benchmarks.coco_lengths import coco_scenes
from tests.unit.model.real_vocabulary import COORD_IDS, PUBLISHED, narrow_config

from .record import ROOT

SIZES = {name.lower(): config for name, config in PUBLISHED.items()} | {"tiny": narrow_config(tied=True)}
SCENES = ("coco", "640x480", "640x640 crowded")
_NUM_RANKS = 151_643  # of the published tokenizer, before its added tokens
_NUM_FILES = 64
_CATEGORIES = (
    "person",
    "bicycle",
    "car",
    "bus",
    "train",
    "boat",
    "bench",
    "bird",
    "cat",
    "dog",
    "horse",
    "cup",
    "chair",
)


@dataclass(frozen=True)
class Setting:
    """What is measured, and on what.

    Attributes:
        size: of the model, a key of :data:`SIZES`.
        group: whose losses.
        attention: of ``model.attn_implementation``.
        scenes: one of :data:`SCENES`.
        batch: images of a microbatch.
        accumulate: microbatches of a step.
        checkpointing: of activations.
        packing: whether a microbatch is one row.
        deterministic: of ``training``.
        num_images: of the data set.
        num_workers: processes that read images.
        changes: further ``KEY=VALUE`` of the configuration.
    """

    size: str
    group: str = "C"
    attention: str = "sdpa"
    scenes: str = "coco"
    batch: int = 8
    accumulate: int = 1
    checkpointing: bool = False
    packing: bool = False
    deterministic: bool = False
    num_images: int = 512
    num_workers: int = 0
    changes: tuple[str, ...] = ()


def configured(setting: Setting, folder: Path) -> ExperimentConfig:
    """Return the configuration of one run: the shipped experiment on COCO, but for what is measured."""
    data = write_scenes(folder, setting.scenes, setting.num_images)
    flags = {name: str(value).lower() for name, value in vars(setting).items() if isinstance(value, bool)}
    config = load_config(
        ROOT / "experiments" / "coco_qwen3vl_4b.yaml",
        [
            "experiment.name=campaign",
            f"experiment.runs_dir={folder / 'runs'}",
            f"model.attn_implementation={setting.attention}",
            *(f"data.{split}_annotations={data / 'instances.json'}" for split in ("train", "val")),
            *(f"data.{split}_images={data}" for split in ("train", "val")),
            f"data.num_workers={setting.num_workers}",
            f"data.packing={flags['packing']}",
            f"training.gradient_checkpointing={flags['checkpointing']}",
            f"training.deterministic={flags['deterministic']}",
            f"training.per_device_batch_size={setting.batch}",
            f"training.gradient_accumulation_steps={setting.accumulate}",
            "cluster.executor=inline",
            "cluster.num_workers=1",
            *setting.changes,
        ],
    )
    check_attention(config.model.attn_implementation, dtype=config.model.dtype)
    return group_config(config, setting.group, 0)


def components(config: ExperimentConfig, size: str) -> Components:
    """Build the parts of a run as ``build_components`` does, with a model that was read from nowhere."""
    processor = Processor(published_tokenizer(), image_processor())
    encoding = build_encoding(config, processor)
    vocab = encoding.vocab
    assert vocab.numbers.ids == COORD_IDS
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        base = random_model(size, dtype=DTYPES[config.model.dtype], attention=config.model.attn_implementation)
        model = with_adapters(config, base, offset_ids=[*vocab.numbers.ids, *vocab.added_structure_ids])
    check_adapter_ids(model, vocab)
    return Components(
        model=model,
        processor=processor,
        encoding=encoding,
        train=read_split(config, "train"),
        val=read_split(config, "val"),
        criterion=build_criterion(config),
        param_groups=param_groups(config, model),
        forward_terms=TermForward(base=model, vocab=vocab, image_spec=encoding.image_spec),
    )


def random_model(size: str, *, dtype: torch.dtype, attention: str) -> Qwen3VLForConditionalGeneration:
    """Return a model of a published size on torch's present device, its tables long enough for the coord tokens."""
    given = copy.deepcopy(SIZES[size])
    given["text_config"]["vocab_size"] = max(given["text_config"]["vocab_size"], COORD_IDS.stop)
    config = Qwen3VLConfig.from_dict(given)
    return Qwen3VLForConditionalGeneration._from_config(config, dtype=dtype, attn_implementation=attention).eval()


def image_processor() -> Qwen2VLImageProcessorPil:
    """Return the image processor of the published models."""
    size = {"shortest_edge": 65_536, "longest_edge": 16_777_216}
    return Qwen2VLImageProcessorPil(image_mean=[0.5] * 3, image_std=[0.5] * 3, patch_size=16, merge_size=2, size=size)


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


def write_scenes(folder: Path, scenes: str, num_images: int) -> Path:
    """Write JPEGs and COCO annotations, unless they are there; images share a few files.

    ``coco``: sides and objects as COCO's; ``640x480``: that side alone; ``640x640 crowded``: the largest image, and
    the 93 objects of COCO's most crowded one.
    """
    made = folder / f"{scenes.replace(' ', '_')}-{num_images}"
    if (made / "instances.json").exists():
        return made
    made.mkdir(parents=True)
    sizes, counts = coco_scenes(num_images)
    if scenes == "640x480":
        sizes = [(640, 480)] * num_images
    elif scenes == "640x640 crowded":
        sizes, counts = [(640, 640)] * num_images, np.full(num_images, 93)
    rng = np.random.default_rng(0)
    files = [_picture(made / f"{number}.jpg", size, rng) for number, size in enumerate(sizes[:_NUM_FILES])]
    sizes = [sizes[number % len(files)] for number in range(num_images)]
    document: dict[str, list[dict[str, object]]] = {
        "images": [
            {"id": number, "file_name": files[number % len(files)].name, "width": width, "height": height}
            for number, (width, height) in enumerate(sizes)
        ],
        "categories": [{"id": number, "name": name} for number, name in enumerate(_CATEGORIES)],
        "annotations": [],
    }
    for number, ((width, height), count) in enumerate(zip(sizes, counts.tolist(), strict=True)):
        low = rng.uniform(0, 0.7, (count, 2))
        span = rng.uniform(0.02, 0.3, (count, 2))
        boxes = np.hstack([low, span]) * [width, height, width, height]
        document["annotations"] += [
            {
                "id": len(document["annotations"]) + at,
                "image_id": number,
                "category_id": int(rng.integers(len(_CATEGORIES))),
                "bbox": box,
                "area": box[2] * box[3],
                "iscrowd": 0,
            }
            for at, box in enumerate(boxes.tolist())
        ]
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


def named(base: Setting, *more: str, **changes: object) -> tuple[str, Setting]:
    """Return a setting with some changes, ``more`` of the configuration among them, and a name that says them."""
    changed = replace(base, changes=(*base.changes, *more), **changes)
    words = [changed.group, changed.attention, changed.scenes, f"batch {changed.batch}"]
    words += [f"x {changed.accumulate}"] * (changed.accumulate > 1)
    switches = ("checkpointing", "packing", "deterministic")
    words += [name.replace("_", " ") for name in switches if vars(changed)[name]]
    return " ".join([*words, *more]), changed
