"""Training pictures in validation, and what else two splits and the size a picture is fed at must say."""

import numpy as np
import pytest
from PIL import Image

from coordexp.data.images.patches import ImageSpec, fed_sentence
from coordexp.data.sample import Objects, Sample
from coordexp.data.splits.check import crowded_sentence
from coordexp.data.splits.leaks import leak_sentence
from coordexp.model.tiny.parts import build_image_processor


def sample(path, seed: int | None = None, *, flip: bool = False, objects: int = 0) -> Sample:
    if seed is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels[:, ::-1] if flip else pixels).resize((64, 48)).save(path)
    boxes = np.tile([0.0, 0.0, 0.5, 0.25], (objects, 1)).reshape(-1, 4)
    return Sample(path, 64, 48, 1, Objects(("cat",) * objects, boxes))


def test_a_picture_in_both_splits_is_found_whatever_its_name(tmp_path):
    train, val = tmp_path / "train", tmp_path / "val"
    learnt = [sample(train / "1.png", 1), sample(train / "2.png", 2), sample(train / "p_jpg.rf.0a.png", 3)]
    learnt.append(sample(train / "same.png", 4))
    seen = [
        sample(val / "other.png", 1),  # its bytes
        sample(val / "p_jpg.rf.ff.png", 3, flip=True),  # another augmented copy
        sample(val / "same.jpg", 4),  # written again in another format
        sample(val / "2.png", 20),  # counted anew: another picture
    ]
    said = leak_sentence(learnt, seen)
    assert said.startswith("2 of 4 validation pictures are training pictures too: 1 byte for byte; 1 as copies")
    (val / "same.jpg").rename(val / "same.png")
    seen[2] = sample(val / "same.png")
    assert "; 1 by name and look" in leak_sentence(learnt, seen)
    assert leak_sentence(learnt, seen[3:]) == ""


@pytest.mark.parametrize("num", [100, 101])
def test_more_objects_than_ap_counts_are_named(tmp_path, num):
    said = crowded_sentence([sample(tmp_path / "a.png", objects=num)], limit=100)
    assert said.startswith("1 of 1 validation images have more than 100 objects, up to 101") == (num > 100)


def test_what_is_shrunk_is_said(tmp_path):
    samples = [sample(tmp_path / "a.png", objects=3)]
    assert fed_sentence(samples, ImageSpec.from_processor(build_image_processor(), max_pixels=96 * 96)) == ""
    said = fed_sentence(samples, ImageSpec.from_processor(build_image_processor(), min_pixels=1, max_pixels=32 * 24))
    assert said.startswith("64 x 48 is fed as 32 x 16; the median box is 16 x 4 there")
