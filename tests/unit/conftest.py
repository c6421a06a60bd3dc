"""Small data sets on disk, and the tiny tokenizer with its coordinate vocabulary."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coordexp.coord_tokens.grammar.sequence import text_encoder
from coordexp.coord_tokens.vocab import expand_vocab
from coordexp.data.images.patches import ImageSpec
from coordexp.data.prompt import Prompt
from coordexp.model.tiny.parts import build_image_processor, build_model, build_tokenizer


@dataclass
class CocoFolder:
    """A COCO data set in a temporary folder; change ``document`` and ``save`` it again."""

    root: Path
    document: dict

    @property
    def images(self):
        return self.root / "images"

    @property
    def annotations(self):
        return self.root / "instances.json"

    def save(self):
        self.annotations.write_text(json.dumps(self.document), encoding="utf-8")
        return self

    def enlarge(self, num_images=60, seed=0):
        """Replace the images by many of one file, with seven scattered objects each on average."""
        rng = np.random.default_rng(seed)
        Image.new("RGB", (640, 480)).save(self.images / "c.jpg")
        self.document["images"] = [
            {"id": int(key), "file_name": "c.jpg", "width": 640, "height": 480}
            for key in rng.permutation(10**6)[:num_images]
        ]
        self.document["annotations"] = [
            {
                "id": number,
                "image_id": self.document["images"][int(rng.integers(num_images))]["id"],
                "category_id": int(rng.integers(1, 3)),
                "bbox": [*rng.uniform(0, 400, 2).round(2), *rng.uniform(1, 80, 2).round(2)],
                "iscrowd": int(rng.random() < 0.05),
                "segmentation": [rng.uniform(0, 400, 12).round(1).tolist()],
            }
            for number in range(num_images * 7)
        ]
        return self.save()


@pytest.fixture
def coco(tmp_path):
    """Two images (100 x 50 with two objects, 64 x 64 with none) and two categories."""
    folder = CocoFolder(
        tmp_path,
        {
            "images": [
                {"id": 7, "file_name": "a.jpg", "width": 100, "height": 50},
                {"id": 3, "file_name": "b.png", "width": 64, "height": 64},
            ],
            "annotations": [
                {"id": 1, "image_id": 7, "category_id": 2, "bbox": [10, 20, 30, 20], "iscrowd": 0, "area": 600},
                {"id": 2, "image_id": 7, "category_id": 1, "bbox": [0, 0, 100, 50], "iscrowd": 0, "area": 5000},
            ],
            "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "traffic light"}],
        },
    )
    folder.images.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, size=(64, 100, 3), dtype=np.uint8)
    Image.fromarray(noise[:50]).save(folder.images / "a.jpg")
    Image.fromarray(noise[:, :64]).save(folder.images / "b.png")
    return folder.save()


@pytest.fixture(scope="session")
def native():
    tokenizer = build_tokenizer()
    return tokenizer, expand_vocab(build_model(tokenizer), tokenizer)


@pytest.fixture(scope="session")
def spec():
    tokenizer = build_tokenizer()
    return tokenizer, expand_vocab(build_model(tokenizer), tokenizer, structure="spec")


@pytest.fixture(scope="session")
def encode_text(native):
    return text_encoder(native[0])


@pytest.fixture(scope="session")
def prompt(native):
    return Prompt.build(native[0])


@pytest.fixture(scope="session")
def image_spec():
    return ImageSpec.from_processor(build_image_processor())
