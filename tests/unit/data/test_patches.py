"""Images: bit-equal to the Hugging Face processor, every pixel format, and nothing but DataError."""

import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Qwen2VLImageProcessorPil

from coordexp.data.images.files import size_problem
from coordexp.data.images.patches import ImageSpec, pixel_values, to_patches
from coordexp.data.images.pixels import read_image
from coordexp.errors import ConfigError, DataError
from coordexp.model.tiny.parts import build_image_processor

QWEN3_VL = {"patch_size": 16, "merge_size": 2, "size": {"shortest_edge": 65536, "longest_edge": 400_000}}


def noise(width, height, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("size", [(96, 96), (192, 192), (224, 160), (7, 5), (1, 1), (640, 4), (33, 190), (50, 17)])
@pytest.mark.parametrize("kind", ["tiny", "qwen3-vl", "clip-mean"])
def test_bit_equal_to_the_hugging_face_processor(size, kind):
    processor = {
        "tiny": build_image_processor,
        "qwen3-vl": lambda: Qwen2VLImageProcessorPil(image_mean=[0.5] * 3, image_std=[0.5] * 3, **QWEN3_VL),
        "clip-mean": Qwen2VLImageProcessorPil,
    }[kind]()
    picture = noise(*size)
    wanted = processor(images=[picture], return_tensors="pt")
    spec = ImageSpec.from_processor(processor)
    patches, grid = to_patches(picture, spec)
    assert wanted["image_grid_thw"].tolist() == [[1, *grid]]
    assert torch.equal(pixel_values(torch.from_numpy(patches), spec), wanted["pixel_values"])
    assert grid == spec.grid(width=size[0], height=size[1])
    assert spec.num_tokens(width=size[0], height=size[1]) == len(patches) // processor.merge_size**2


@pytest.mark.parametrize("resample", range(6))
def test_images_are_resized_by_the_filter_that_the_processor_names(resample):
    processor = Qwen2VLImageProcessorPil(resample=resample, **QWEN3_VL)
    picture = noise(500, 300)
    spec = ImageSpec.from_processor(processor)
    patches, _ = to_patches(picture, spec)
    wanted = processor(images=[picture], return_tensors="pt")["pixel_values"]
    assert torch.equal(pixel_values(torch.from_numpy(patches), spec), wanted)
    default = ImageSpec.from_processor(Qwen2VLImageProcessorPil(**QWEN3_VL))
    assert np.array_equal(patches, to_patches(picture, default)[0]) == (resample == 3)  # bicubic


def test_explicit_pixel_limits_win():
    spec = ImageSpec.from_processor(build_image_processor(), min_pixels=64 * 64, max_pixels=64 * 64)
    assert spec.grid(width=500, height=500) == (8, 8)
    assert spec.grid(width=16, height=16) == (8, 8)


def test_limits_the_wrong_way_round_are_refused():
    with pytest.raises(ConfigError, match=r"data\.min_pixels.*data\.max_pixels"):
        ImageSpec.from_processor(build_image_processor(), min_pixels=100_000)


def _save(image, path, **options):
    image.save(path, **options)
    return path


def test_a_cmyk_jpeg(tmp_path):
    red = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    picture = read_image(_save(red, tmp_path / "a.jpg", quality=95))
    assert np.abs(np.asarray(picture).astype(int) - [255, 0, 0]).max() <= 3


def test_transparency_stands_on_white_whatever_colour_it_hides(tmp_path):
    stored = noise(16, 16)
    stored.putalpha(0)
    assert np.asarray(read_image(_save(stored, tmp_path / "a.png"))).min() == 255
    stored.putalpha(51)
    blended = np.asarray(noise(16, 16)) * 0.2 + 255 * 0.8
    assert np.abs(np.asarray(read_image(_save(stored, tmp_path / "b.png"))) - blended).max() <= 1
    palette = noise(16, 16).quantize(8)
    path = _save(palette, tmp_path / "c.png", transparency=bytes([0, 255, 255, 255, 255, 255, 255, 255]))
    hidden = np.asarray(palette) == 0
    pixels = np.asarray(read_image(path))
    assert (pixels[hidden] == 255).all()
    assert np.array_equal(pixels[~hidden], np.asarray(palette.convert("RGB"))[~hidden])


def test_a_truncated_jpeg(tmp_path):
    path = _save(noise(64, 64), tmp_path / "a.jpg")
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(DataError, match=r"a\.jpg.*truncated"):
        read_image(path)


@pytest.mark.parametrize("content", [b"", b"not an image", b"\xff\xd8\xff\xe0", b"GIF89a"])
def test_what_is_no_image(tmp_path, content):
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.jpg"):
        read_image(tmp_path / "a.jpg")


def test_a_missing_image_and_a_folder(tmp_path):
    with pytest.raises(DataError, match=r"none\.jpg"):
        read_image(tmp_path / "none.jpg")
    with pytest.raises(DataError, match="Is a directory"):
        read_image(tmp_path)


def test_another_size_than_annotated(tmp_path):
    path = _save(noise(40, 20), tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a\.png.*40 x 20.*20 x 40"):
        read_image(path, width=20, height=40)


def _png_that_claims(width, height):
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + chunk
        + struct.pack(">I", zlib.crc32(chunk))
        + b"\0\0\xff\xffIDAT"
    )


@pytest.mark.parametrize(
    ("size", "shown"),
    [((20_000, 7_000), "20000 x 7000"), ((30_000, 10), "30000 x 10"), ((60_000, 60_000), "3600000000 pixels")],
)
def test_a_huge_image_is_refused_by_its_header(tmp_path, size, shown, monkeypatch):
    (tmp_path / "a.png").write_bytes(_png_that_claims(*size))
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it went on to decode"))
    with pytest.raises(DataError, match=rf"a\.png.*{shown}"):
        read_image(tmp_path / "a.png")


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


def test_size_problem():
    assert size_problem(640, 480) is None
    assert "too large" in size_problem(12_001, 10_000)
    assert "too elongated" in size_problem(201, 1)
    assert size_problem(200, 1) is None
