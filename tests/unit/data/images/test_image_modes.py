"""Files of every kind: our uint8 patches, normalised, are bit for bit what the Hugging Face processor makes of them."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Qwen2VLImageProcessorPil

from coordexp.data.images.image_file import read_image
from coordexp.data.images.patches import ImageSpec, pixel_values, to_patches

# name: (mode of the stored picture, file format, options)
KINDS = {
    "rgb jpeg": ("RGB", "JPEG", {"quality": 90}),
    "rgb jpeg, 4:2:0": ("RGB", "JPEG", {"quality": 75, "subsampling": 2}),
    "progressive jpeg": ("RGB", "JPEG", {"progressive": True}),
    "grey jpeg": ("L", "JPEG", {}),
    "cmyk jpeg": ("CMYK", "JPEG", {}),
    "rgb png": ("RGB", "PNG", {}),
    "grey png": ("L", "PNG", {}),
    "bilevel png": ("1", "PNG", {}),
    "palette png": ("P", "PNG", {}),
    "alpha png": ("RGBA", "PNG", {}),
    "grey alpha png": ("LA", "PNG", {}),
    "gif": ("P", "GIF", {}),
    "bmp": ("RGB", "BMP", {}),
    "webp": ("RGB", "WEBP", {"lossless": True}),
    "cmyk tiff": ("CMYK", "TIFF", {}),
    "ycbcr tiff": ("YCbCr", "TIFF", {}),
}
SIZES = [(64, 48), (200, 133), (37, 150)]


def processor(max_pixels=16_777_216):
    size = {"shortest_edge": 65_536, "longest_edge": max_pixels}
    return Qwen2VLImageProcessorPil(image_mean=[0.5] * 3, image_std=[0.5] * 3, patch_size=16, merge_size=2, size=size)


def stored(path, kind, size, seed=0):
    mode, file_format, options = KINDS[kind]
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(path, format=file_format, **options)
    return path


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_is_bit_equal(tmp_path, kind, size):
    path = stored(tmp_path / "image", kind, size)
    theirs = processor()
    with Image.open(path) as picture:
        wanted = theirs(images=[picture], do_convert_rgb=True, return_tensors="pt")
    spec = ImageSpec.from_processor(theirs)
    patches, grid = to_patches(read_image(path, width=size[0], height=size[1]), spec)
    assert patches.dtype == np.uint8
    assert wanted["image_grid_thw"].tolist() == [[1, *grid]]
    assert torch.equal(pixel_values(torch.from_numpy(patches), spec), wanted["pixel_values"])


def test_sixteen_bits_are_where_the_processor_fails(tmp_path):
    """It cuts 16-bit grey at 255, so that nearly all becomes white; we scale. The only kind that is not bit-equal."""
    values = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16
    Image.fromarray(values).save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        theirs = np.asarray(picture.convert("RGB"))
    ours = np.asarray(read_image(tmp_path / "a.png"))
    assert (theirs == 255).mean() > 0.9
    assert np.array_equal(ours[..., 0], np.rint(values / 257).astype(np.uint8))


def test_a_draft_decode_would_not_be_equal():
    """Negative control, and why JPEGs are decoded in full: libjpeg's own reduction gives other pixels."""
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (960, 1280, 3), dtype=np.uint8)).save(buffer, "JPEG")
    theirs = processor(max_pixels=640 * 480)
    with Image.open(buffer) as picture:
        wanted = theirs(images=[picture.copy()], return_tensors="pt")["pixel_values"]
    spec = ImageSpec.from_processor(theirs)
    with Image.open(buffer) as picture:
        picture.draft("RGB", (640, 480))
        drafted, grid = to_patches(picture, ImageSpec.from_processor(theirs))
    assert picture.size == (640, 480)
    assert grid == spec.grid(width=1280, height=960)
    assert not torch.equal(pixel_values(torch.from_numpy(drafted), spec), wanted)
