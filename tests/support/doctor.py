"""Checkpoints of true size whose data is a hole in a sparse file, and small COCO sets."""

import json
import struct
from pathlib import Path

import torch
from PIL import Image
from transformers import Qwen3VLConfig
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

from coordexp.doctor.checkpoint import published_config
from coordexp.doctor.examine import Examination
from coordexp.findings import Finding
from coordexp.model.checkpoint.stored_model import empty_model, needed_shapes
from coordexp.model.tiny.parts import build_image_processor, build_tokenizer

NUM_SHARDS = 2


def sparse_checkpoint(path: Path, *, model: str = "4B", tokenizer: Qwen2Tokenizer | None = None) -> Path:
    """Write config, tokenizer, processor and shards of a published shape; the weights are holes that take no disk."""
    path.mkdir(parents=True)
    tokenizer = tokenizer or build_tokenizer()
    config = published_config(f"Qwen/Qwen3-VL-{model}-Instruct")
    assert config is not None
    config.image_token_id = tokenizer.get_vocab()["<|image_pad|>"]
    config.dtype = torch.bfloat16
    config.save_pretrained(path)
    tokenizer.save_pretrained(path)
    processor = build_image_processor()
    processor.patch_size, processor.size = 16, {"shortest_edge": 65_536, "longest_edge": 16_777_216}
    processor.save_pretrained(path)
    write_holes(path, config)
    return path


def write_holes(path: Path, config: Qwen3VLConfig) -> None:
    """Write the shards of ``config`` and their index."""
    shapes = sorted(needed_shapes(empty_model(config, dtype=torch.bfloat16)).items())
    weight_map: dict[str, str] = {}
    for shard in range(NUM_SHARDS):
        file = f"model-{shard + 1:05d}-of-{NUM_SHARDS:05d}.safetensors"
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        offset = 0
        for name, shape in shapes[shard::NUM_SHARDS]:
            stop = offset + 2 * torch.Size(shape).numel()
            header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, stop]}
            offset, weight_map[name] = stop, file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (path / file).open("wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.truncate(8 + len(text) + offset)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def write_coco(root: Path, split: str = "train", *, num_images: int = 3) -> tuple[Path, Path]:
    """Write a small valid annotation file and its images; return both paths."""
    images = root / split
    images.mkdir(parents=True)
    entries, boxes = [], []
    for key in range(1, num_images + 1):
        name = f"{key:06d}.jpg"
        Image.new("RGB", (64, 48)).save(images / name)
        entries.append({"id": key, "file_name": name, "width": 64, "height": 48})
        boxes.append({"id": key, "image_id": key, "category_id": 1, "bbox": [4, 4, 20, 20], "iscrowd": 0})
    data = {"images": entries, "annotations": boxes, "categories": [{"id": 1, "name": "red circle"}]}
    annotations = root / f"{split}.json"
    annotations.write_text(json.dumps(data))
    return annotations, images


def coco_overrides(root: Path) -> list[str]:
    """Write both splits and return the arguments that name them."""
    pairs = {split: write_coco(root, split) for split in ("train", "val")}
    return [
        "data.format=coco",
        *(f"data.{split}_annotations={annotations}" for split, (annotations, _) in pairs.items()),
        *(f"data.{split}_images={images}" for split, (_, images) in pairs.items()),
    ]


def of(found: Examination, check: str) -> list[Finding]:
    """Return the findings of one check."""
    return [finding for finding in found.findings if finding.check == check]


def failures(found: Examination) -> dict[str, str]:
    """Return check and sentence of each failure."""
    return {finding.check: finding.sentence for finding in found.findings if finding.verdict == "failure"}


def tree(root: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of everything below a folder."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(root.rglob("*"))}
