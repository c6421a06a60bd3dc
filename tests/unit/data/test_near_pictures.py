"""Frames of one clip on both sides of a split, and pictures that look alike: found there, and not elsewhere."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coordexp.data.sample import Sample
from coordexp.data.splits.near_pictures import near_sentence
from tests.support.samples import things


def sample(path: Path) -> Sample:
    return Sample(path, 64, 48, 1, things())


def scene(seed: int) -> np.ndarray:
    """A smooth picture, unlike that of any other seed."""
    low = np.random.default_rng(seed).integers(0, 256, (6, 8), dtype=np.uint8)
    return np.asarray(Image.fromarray(low).resize((640, 480), Image.Resampling.BICUBIC))


def save(pixels: np.ndarray, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=92)
    return path


def clips(root: Path, *, num: int = 8, frames: int = 6) -> list[Path]:
    """Clips whose camera moves a little with each frame."""
    paths = []
    for clip in range(num):
        for frame in range(frames):
            moved = np.roll(scene(clip), 4 * frame, axis=1)
            paths.append(save(moved, root / f"clip{clip}_{frame * 5:04d}.jpg"))
    return paths


def test_frames_next_to_training_pictures_are_counted(tmp_path):
    paths = clips(tmp_path)
    val, train = paths[::3], [path for path in paths if path not in paths[::3]]
    sentence = near_sentence([sample(path) for path in train], [sample(path) for path in val])
    assert "of 16 of 16 validation pictures, compared with 32 of 32 training pictures" in sentence
    assert "16 are frames next to a training picture (clip0_0000.jpg and clip0_0005.jpg)" in sentence
    assert "data.unit_by" in sentence


def test_whole_clips_on_one_side_say_nothing(tmp_path):
    paths = clips(tmp_path)
    assert near_sentence([sample(path) for path in paths[:36]], [sample(path) for path in paths[36:]]) == ""


def test_pictures_of_different_scenes_that_are_numbered_say_nothing(tmp_path):
    paths = [save(scene(100 + at), tmp_path / f"{at:06d}.jpg") for at in range(40)]
    assert near_sentence([sample(path) for path in paths[::2]], [sample(path) for path in paths[1::2]]) == ""


def test_copies_of_another_size_under_other_names_look_alike(tmp_path):
    train = [save(scene(at), tmp_path / "train" / f"a{at}.jpg") for at in range(10)]
    small = [np.asarray(Image.fromarray(scene(at)).resize((320, 240))) for at in range(5)]
    val = [save(pixels, tmp_path / "val" / f"other-{chr(97 + at)}.png") for at, pixels in enumerate(small)]
    sentence = near_sentence([sample(path) for path in train], [sample(path) for path in val])
    assert "5 look like one (other-a.png and a0.jpg)" in sentence


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_without_time_nothing_is_said(tmp_path, seconds):
    paths = clips(tmp_path, num=2)
    assert near_sentence([sample(paths[0])], [sample(paths[1])], seconds=seconds) == ""


def test_plain_and_damaged_pictures_are_left_to_others(tmp_path):
    plain = [save(np.full((48, 64), 200, np.uint8), tmp_path / f"plain_{at:03d}.png") for at in range(8)]
    (tmp_path / "cut_001.jpg").write_bytes(b"\xff\xd8\xff")
    train = [*plain[::2], tmp_path / "cut_001.jpg"]
    assert near_sentence([sample(path) for path in train], [sample(path) for path in plain[1::2]]) == ""
