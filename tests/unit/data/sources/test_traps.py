"""One small file for each trap of real data; see also test_image (formats, damage) and test_image_folder (names)."""

import numpy as np
import pytest
from PIL import Image, ImageOps

from coordexp.coord_tokens.grammar.sequence import encode_target
from coordexp.data.dataset import DetectionDataset
from coordexp.data.images.headers import read_header, turned_headers
from coordexp.data.images.orientation import turn_boxes
from coordexp.data.images.pixels import read_image
from coordexp.data.sources.coco.source import CocoSource
from coordexp.errors import DataError

RAMP = np.arange(0, 256, dtype=np.uint8).reshape(16, 16)
HALVES = np.repeat(np.repeat(np.array([[(220, 30, 30), (30, 30, 220)]], np.uint8), 20, axis=0), 20, axis=1)


def save(picture, path, **options):
    picture.save(path, **options)
    return path


# --- EXIF orientation: boxes are those of the stored pixels, as for COCO's tools -------------------


def with_orientation(path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return save(Image.fromarray(HALVES), path, exif=exif, **({"quality": 95} if path.suffix == ".jpg" else {}))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_exif_pictures_are_read_as_shown_and_boxes_of_stored_pixels_turn_with_them(tmp_path, orientation, suffix):
    """The left half is red as stored; Pillow is the oracle of what a viewer shows."""
    path = with_orientation(tmp_path / f"a.{suffix}", orientation)
    with Image.open(path) as picture:
        shown = ImageOps.exif_transpose(picture).convert("RGB")
    pixels = np.asarray(read_image(path, width=shown.width, height=shown.height))
    assert np.array_equal(pixels, np.asarray(shown))
    assert turned_headers([path]).get(0, read_header(path)) == (40, 20, orientation)
    ((x1, y1, x2, y2),) = turn_boxes(np.array([[0.0, 0.0, 0.45, 1.0]]), orientation) * [*shown.size, *shown.size]
    red = pixels[round(y1) : round(y2), round(x1) : round(x2)]
    assert red.size == 18 * 20 * 3
    assert red[..., 0].min() > 180


# --- pixel formats ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["I;16", "I;16B"])
def test_sixteen_bits_of_either_byte_order(tmp_path, mode):
    values = RAMP.astype("<u2" if mode == "I;16" else ">u2") * 257
    path = save(Image.frombytes(mode, (16, 16), values.tobytes()), tmp_path / "a.tif")
    assert np.array_equal(np.asarray(read_image(path))[..., 0], RAMP)


def test_numbers_without_a_range_are_refused_not_blackened(tmp_path):
    path = save(Image.fromarray((RAMP / 255).astype(np.float32)), tmp_path / "a.tif")
    with pytest.raises(DataError, match=r"a\.tif.*floating-point"):
        read_image(path)
    path = save(Image.fromarray(RAMP.astype(np.int32) * 10_000), tmp_path / "b.tif")
    with pytest.raises(DataError, match=r"b\.tif.*16 bits"):
        read_image(path)


@pytest.mark.parametrize("mode", ["L", "P", "1", "LA", "RGBA", "CMYK"])
def test_every_mode_trains(mode, coco, native, prompt, image_spec):
    """From the file through the reader to patches, not only through the decoder."""
    name = "b.tif" if mode == "CMYK" else "b.png"
    grey = Image.fromarray(np.full((64, 64, 3), 200, np.uint8))
    save(grey.quantize(2) if mode == "P" else grey.convert(mode), coco.images / name)
    coco.document["images"][1]["file_name"] = name
    data = CocoSource(coco.save().annotations, coco.images).read()
    dataset = DetectionDataset(
        samples=data.samples[1:], tokenizer=native[0], vocab=native[1], prompt=prompt, image_spec=image_spec,
        max_objects=9, max_length=4096, seed=0,
    )  # fmt: skip
    patches = dataset[0].patches
    assert patches.shape[1] == 3 * image_spec.patch_size**2
    assert patches.min() >= (200 if mode != "1" else 0)


# --- records ------------------------------------------------------------------------------------


def test_an_ignored_box_is_no_target(coco):
    coco.document["annotations"][0]["ignore"] = 1
    data = CocoSource(coco.save().annotations, coco.images).read()
    assert data.samples[0].objects.descs == ("cat",)
    assert (data.counts["ignored"], data.counts["crowd"], data.counts["boxes"]) == (1, 0, 1)


def test_a_box_cut_at_the_border_is_counted_and_its_part_stays(coco):
    coco.document["annotations"][0]["bbox"] = [-10, 40, 30, 30]
    data = CocoSource(coco.save().annotations, coco.images).read()
    assert tuple(data.samples[0].objects.boxes_norm_xyxy[0]) == pytest.approx((0, 0.8, 0.2, 1.0))
    assert data.counts["clipped"] == 1
    coco.document["annotations"][0]["iscrowd"] = 1  # a crowd is no target: nothing was cut of one
    assert CocoSource(coco.save().annotations, coco.images).read().counts["clipped"] == 0


def test_a_thin_box_is_counted_and_written_one_bin_wide(coco, native, encode_text):
    coco.document["annotations"][0]["bbox"] = [50.01, 10, 0.02, 20]
    data = CocoSource(coco.save().annotations, coco.images).read()
    assert data.counts["thin"] == 1
    objects = data.samples[0].objects.take(np.array([0]))
    target = encode_target(objects.descs, objects.boxes_norm_xyxy, native[1], encode_text)
    bins = [token - native[1].coord_ids.start for token in target.ids if token in native[1].coord_ids]
    assert bins == [500, 200, 501, 600]
    assert objects.boxes_norm_xyxy[0, 2] < 0.501  # the truth that a loss compares with is not widened
