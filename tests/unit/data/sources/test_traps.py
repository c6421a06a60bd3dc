"""One small file for each trap of real data; see also test_image (formats, damage) and test_image_folder (names)."""

import io
import json
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from coordexp.coord_tokens.grammar.sequence import encode_target
from coordexp.data.dataset import DetectionDataset
from coordexp.data.image_file import MAX_IMAGE_SIDE_PX, check_image, read_header, read_image, turn_boxes, turned_headers
from coordexp.data.prepare import PrepareSpec
from coordexp.data.sources.coco import read_coco
from coordexp.errors import DataError
from tests.support.samples import prepare, read_jsonl

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


def test_exif_cocos_own_images_carry_none(coco_tiny):
    """So for COCO itself the rule changes nothing; it is for data made in its format."""
    pictures = sorted(coco_tiny.rglob("*.jpg"))
    assert len(pictures) == 38
    for path in pictures:
        with Image.open(path) as picture:
            assert picture.getexif().get(0x0112, 1) == 1


# --- pixel formats ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["I;16", "I;16B"])
def test_sixteen_bits_of_either_byte_order(tmp_path, mode):
    values = RAMP.astype("<u2" if mode == "I;16" else ">u2") * 257
    path = save(Image.frombytes(mode, (16, 16), values.tobytes()), tmp_path / "a.tif")
    assert np.array_equal(np.asarray(read_image(path))[..., 0], RAMP)


def test_sixteen_bits_of_a_pgm(tmp_path):
    (tmp_path / "a.pgm").write_bytes(b"P5 16 16 65535\n" + (RAMP.astype(">u2") * 257).tobytes())
    assert np.array_equal(np.asarray(read_image(tmp_path / "a.pgm"))[..., 0], RAMP)


def test_numbers_without_a_range_are_refused_not_blackened(tmp_path):
    path = save(Image.fromarray((RAMP / 255).astype(np.float32)), tmp_path / "a.tif")
    with pytest.raises(DataError, match="floating-point numbers of no defined range"):
        read_image(path)
    path = save(Image.fromarray(RAMP.astype(np.int32) * 10_000), tmp_path / "b.tif")
    with pytest.raises(DataError, match="expected at most 16 bits"):
        read_image(path)


@pytest.mark.parametrize("mode", ["L", "P", "1", "LA", "RGBA", "CMYK"])
def test_every_mode_trains(mode, coco, native, prompt, image_spec):
    """From the file through the reader to patches, not only through the decoder."""
    name = "b.tif" if mode == "CMYK" else "b.png"
    grey = Image.fromarray(np.full((64, 64, 3), 200, np.uint8))
    save(grey.quantize(2) if mode == "P" else grey.convert(mode), coco.images / name)
    coco.document["images"][1]["file_name"] = name
    data = read_coco(coco.save().annotations, coco.images)
    dataset = DetectionDataset(
        samples=data.samples[1:], tokenizer=native[0], vocab=native[1], prompt=prompt, image_spec=image_spec,
        max_objects=9, max_length=4096, seed=0,
    )  # fmt: skip
    patches = dataset[0].patches
    assert patches.shape[1] == 3 * image_spec.patch_size**2
    assert patches.min() >= (200 if mode != "1" else 0)


@pytest.mark.parametrize("kind", ["EPS", "PCX", "ICO"])
def test_only_formats_of_photographs_are_opened(tmp_path, kind):
    """Pillow would hand an EPS file to Ghostscript, whatever its name says; PCX and ICO it decodes itself."""
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16)).save(buffer, format=kind)
    (tmp_path / "a.jpg").write_bytes(buffer.getvalue())
    with pytest.raises(DataError, match=r"a\.jpg: image does not decode \(cannot identify"):
        read_image(tmp_path / "a.jpg")


# --- size: refused by the header, before a pixel is decoded --------------------------------------


def png_of(width, height, *, rows=b"", extra=b""):
    """A PNG whose header claims a size; its data may be missing."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.fixture
def no_decoding(monkeypatch):
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("it went on to decode"))


@pytest.mark.parametrize("size", [(60_000, 40_000), (60_000, 1_000), (1_000, 60_000), (MAX_IMAGE_SIDE_PX + 1, 400)])
def test_a_sixty_thousand_pixel_image_is_refused_by_its_header(coco, no_decoding, size):
    """The annotation says 64 x 64, which is wrong, and only the file shows it."""
    (coco.images / "b.png").write_bytes(png_of(*size))
    [_, sample] = read_coco(coco.annotations, coco.images).samples
    for look in (read_image, check_image):
        with pytest.raises(DataError, match=r"b\.png: .*(is too large|exceeds limit)"):
            look(sample.image, width=sample.width, height=sample.height)
    with pytest.raises(DataError, match=r"images\[1\] \(id 3\): .*b\.png: .*(is too large|exceeds limit)"):
        prepare(PrepareSpec(coco.annotations, coco.images, coco.root / "out", check_images="headers"))


def test_a_sixty_thousand_pixel_annotation_is_refused_before_the_file_is_touched(coco, no_decoding):
    coco.document["images"][1] |= {"width": 60_000, "height": 1_000}
    with pytest.raises(DataError, match=r"images\[1\] \(id 3\): 60000 x 1000 pixels is too large"):
        read_coco(coco.save().annotations, coco.images)
    record = {"image": "b.png", "width": 60_000, "height": 1_000, "image_id": 3, "objects": []}
    (coco.root / "a.jsonl").write_text(json.dumps(record))
    with pytest.raises(DataError, match="line 1: 60000 x 1000 pixels is too large"):
        read_jsonl(coco.root / "a.jsonl", coco.images)


def test_a_small_header_before_much_data(tmp_path):
    """What inflates beyond the size of the header is not kept: the picture is that of the header."""
    (tmp_path / "a.png").write_bytes(png_of(4, 4, rows=bytes(30_000_000)))
    assert len((tmp_path / "a.png").read_bytes()) < 40_000
    assert read_image(tmp_path / "a.png", width=4, height=4).size == (4, 4)


def test_a_text_chunk_that_inflates_is_refused(tmp_path):
    content = b"comment\0\0" + zlib.compress(bytes(80_000_000))
    chunk = struct.pack(">I", len(content)) + b"zTXt" + content + struct.pack(">I", zlib.crc32(b"zTXt" + content))
    (tmp_path / "a.png").write_bytes(png_of(4, 4, rows=bytes(52), extra=chunk))
    with pytest.raises(DataError, match="does not decode"):
        read_image(tmp_path / "a.png")


# --- records ------------------------------------------------------------------------------------


def test_an_ignored_box_is_no_target(coco):
    coco.document["annotations"][0]["ignore"] = 1
    data = read_coco(coco.save().annotations, coco.images)
    assert data.samples[0].objects.descs == ("cat",)
    assert (data.counts["ignored"], data.counts["crowd"], data.counts["boxes"]) == (1, 0, 1)


def test_a_repeated_image_id_is_named_and_its_first_image_stays(coco):
    coco.document["images"].append({"id": 7, "file_name": "b.png", "width": 64, "height": 64})
    data = read_coco(coco.save().annotations, coco.images, max_bad_fraction=0.4)
    assert [sample.image.name for sample in data.samples] == ["a.jpg", "b.png"]
    assert len(data.samples[0].objects) == 2
    assert [(bad.where.partition(": ")[2], bad.reason) for bad in data.rejected] == [
        ("images[2] (id 7)", "image id 7 was used before")
    ]


def test_two_images_of_one_name_keep_their_own_objects(coco):
    coco.document["images"][1] |= {"file_name": "a.jpg", "width": 100, "height": 50}
    coco.document["annotations"][1]["image_id"] = 3
    manifest = prepare(PrepareSpec(coco.save().annotations, coco.images, coco.root / "out")).manifest
    assert manifest["counts"]["repeated_file_names"] == 1
    lines = (coco.root / "out" / "samples.jsonl").read_text().splitlines()
    found = [(record["image"], record["image_id"], len(record["objects"])) for record in map(json.loads, lines)]
    assert found == [("a.jpg", 7, 1), ("a.jpg", 3, 1)]


def test_unicode_names_are_written_as_they_are(coco):
    names = ("Ünïcode 猫 🐈‍⬛", "ﬁsh\u00a0& chips")
    for category, name in zip(coco.document["categories"], names, strict=True):
        category["name"] = name
    prepare(PrepareSpec(coco.save().annotations, coco.images, coco.root / "out"))
    text = (coco.root / "out" / "samples.jsonl").read_bytes().decode("utf-8")
    assert all(name in text for name in names)


def test_a_box_cut_at_the_border_is_counted_and_its_part_stays(coco):
    coco.document["annotations"][0]["bbox"] = [-10, 40, 30, 30]
    data = read_coco(coco.save().annotations, coco.images)
    assert tuple(data.samples[0].objects.boxes_norm_xyxy[0]) == pytest.approx((0, 0.8, 0.2, 1.0))
    assert data.counts["clipped"] == 1
    coco.document["annotations"][0]["iscrowd"] = 1  # a crowd is no target: nothing was cut of one
    assert read_coco(coco.save().annotations, coco.images).counts["clipped"] == 0


def test_a_thin_box_is_counted_and_written_one_bin_wide(coco, native, encode_text):
    coco.document["annotations"][0]["bbox"] = [50.01, 10, 0.02, 20]
    data = read_coco(coco.save().annotations, coco.images)
    assert data.counts["thin"] == 1
    objects = data.samples[0].objects.take(np.array([0]))
    target = encode_target(objects.descs, objects.boxes_norm_xyxy, native[1], encode_text)
    bins = [token - native[1].coord_ids.start for token in target.ids if token in native[1].coord_ids]
    assert bins == [500, 200, 501, 600]
    assert objects.boxes_norm_xyxy[0, 2] < 0.501  # the truth that a loss compares with is not widened
