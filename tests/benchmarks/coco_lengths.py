"""Sizes, objects and lengths of samples as COCO gives them."""

import numpy as np

from coordexp.data.images.patches import ImageSpec


def coco_scenes(num, *, seed=0):
    """Return width and height of COCO-like images, and how many objects each holds.

    Sides: the longer one 640 px, the other mostly 480 or 424 to 428, every fourth image upright.
    Objects: heavy-tailed, mean 7.3, at most 93.
    """
    return _draw(np.random.default_rng(seed), num)


def coco_lengths(num, *, max_pixels, seed=0):
    """Token counts of COCO-like samples at Qwen3-VL's 16 px patches, merged two by two.

    At most 30 objects each; an object takes 8 or 9 tokens.
    """
    rng = np.random.default_rng(seed)
    spec = ImageSpec(16, 2, 2, 65_536, max_pixels, (0.5,) * 3, (0.5,) * 3, 1 / 255)
    sizes, objects = _draw(rng, num)
    image = np.array([spec.num_tokens(width=width, height=height) for width, height in sizes])
    assert num < 5_000 or 7.0 < objects.mean() < 7.6
    objects = np.minimum(objects, 30)
    return (31 + image + 8 * objects + rng.binomial(objects, 0.25)).tolist()


def _draw(rng, num):
    common = rng.choice(
        [480, 427, 426, 425, 424, 428, 360, 640], size=num, p=[0.42, 0.25, 0.1, 0.1, 0.03, 0.03, 0.03, 0.04]
    )
    other = np.where(rng.random(num) < 0.7, common, rng.integers(240, 641, num)).tolist()
    sizes = [(640, side) if wide else (side, 640) for side, wide in zip(other, rng.random(num) < 0.73, strict=True)]
    return sizes, np.clip(np.rint(rng.lognormal(np.log(4.5), 0.98, num)), 1, 93).astype(int)
