"""RGB pixels -> uint8 patches, and uint8 patches -> the pixel values that a Qwen3-VL vision tower takes.

Patches travel as bytes and are normalised on the model's device. That is an eighth of the bytes that the Hugging Face
processor makes, and the pixel values are the same numbers.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from coordexp.coord_tokens.smart_resize import smart_resize
from coordexp.data.sample import Sample
from coordexp.errors import ConfigError

_SHRUNK_BELOW = 0.9
"""A picture that keeps a smaller share of its pixels is called shrunk."""


class ImageProcessor(Protocol):
    """The attributes that are read from a Hugging Face Qwen2-VL / Qwen3-VL image processor."""

    patch_size: int
    merge_size: int
    temporal_patch_size: int
    image_mean: list[float]
    image_std: list[float]
    rescale_factor: float
    size: dict[str, int]

    @property
    def resample(self) -> int: ...


@dataclass(frozen=True)
class ImageSpec:
    """How images become patches; lengths are in pixels, ``resample`` is PIL's number of a filter."""

    patch_size: int
    merge_size: int
    temporal_patch_size: int
    min_pixels: int
    max_pixels: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    rescale_factor: float
    resample: int = Image.Resampling.BICUBIC

    @classmethod
    def from_processor(
        cls, processor: ImageProcessor, *, min_pixels: int | None = None, max_pixels: int | None = None
    ) -> "ImageSpec":
        """Read the numbers of an image processor; explicit pixel limits replace its own.

        Raises:
            ConfigError: if the limits that result are the wrong way round.
        """
        # The processor calls its limits edges; they are numbers of pixels.
        low = min_pixels or processor.size["shortest_edge"]
        high = max_pixels or processor.size["longest_edge"]
        if low > high:
            raise ConfigError(
                f"images would get at least {low} pixels and at most {high} (data.min_pixels and data.max_pixels or "
                "--max-pixels; where not given, what the model was trained with, or its image processor's own): "
                "expected the first to be smaller"
            )
        return cls(
            patch_size=processor.patch_size,
            merge_size=processor.merge_size,
            temporal_patch_size=processor.temporal_patch_size,
            min_pixels=low,
            max_pixels=high,
            mean=(processor.image_mean[0], processor.image_mean[1], processor.image_mean[2]),
            std=(processor.image_std[0], processor.image_std[1], processor.image_std[2]),
            rescale_factor=processor.rescale_factor,
            resample=int(processor.resample),
        )

    def grid(self, *, width: int, height: int) -> tuple[int, int]:
        """Return the patch grid (rows, columns) of an image of this size, as Qwen-VL resizes it."""
        factor = self.patch_size * self.merge_size
        columns, rows = smart_resize(width, height, factor=factor, low=self.min_pixels, high=self.max_pixels)
        return rows // self.patch_size, columns // self.patch_size

    def num_tokens(self, *, width: int, height: int) -> int:
        """Return how many tokens an image of this size takes."""
        rows, columns = self.grid(width=width, height=height)
        return rows * columns // self.merge_size**2

    def fed_size(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height in pixels of the copy of a picture that is cut into patches."""
        rows, columns = self.grid(width=width, height=height)
        return columns * self.patch_size, rows * self.patch_size


def to_patches(picture: Image.Image, spec: ImageSpec) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Resize an RGB image and cut it into P patches.

    Returns:
        ``[P, 3 * patch * patch]`` uint8, and the grid: rows and columns, P = rows * columns. The patches are in the
        merge order of Qwen-VL: the merge x merge patches that become one token stand together.
    """
    rows, columns = spec.grid(width=picture.width, height=picture.height)
    size, merge = spec.patch_size, spec.merge_size
    resized = picture.resize((columns * size, rows * size), Image.Resampling(spec.resample))
    pixels = np.asarray(resized).reshape(rows // merge, merge, size, columns // merge, merge, size, 3)
    patches = pixels.transpose(0, 3, 1, 4, 6, 2, 5)
    return np.ascontiguousarray(patches).reshape(rows * columns, 3 * size * size), (rows, columns)


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the CPU to a device; the host does not wait for what the device still has to do."""
    if device.type == "cuda":
        values = values.pin_memory()  # from pageable memory, the copy would block the host
    return values.to(device, non_blocking=True)


def pixel_values(patches: Tensor, spec: ImageSpec) -> Tensor:
    """Normalise patches on their device, and repeat them over the temporal patch.

    Args:
        patches: ``[P, 3 * patch * patch]`` uint8.
        spec: how the images became patches.

    Returns:
        ``[P, 3 * temporal * patch * patch]`` float32, as ``model(pixel_values=...)`` takes it.
    """
    side = spec.patch_size
    # The Hugging Face processor scales in float64 and normalises in float32: the same here, bit for bit.
    scaled = (patches.view(-1, 3, 1, side, side).to(torch.float64) * spec.rescale_factor).to(torch.float32)
    mean = upload(torch.tensor(spec.mean), patches.device).view(1, 3, 1, 1, 1)
    std = upload(torch.tensor(spec.std), patches.device).view(1, 3, 1, 1, 1)
    values = (scaled - mean) / std
    return values.expand(-1, 3, spec.temporal_patch_size, side, side).reshape(patches.shape[0], -1)


def fed_sentence(samples: Sequence[Sample], spec: ImageSpec) -> str:
    """Return what the most common shrunk picture size becomes, and the median box after it; "" if none is shrunk."""
    num_of_size = Counter((sample.width, sample.height) for sample in samples)
    fed_sizes = {size: spec.fed_size(*size) for size in num_of_size}
    shrunk: Counter[tuple[int, int]] = Counter()
    for size, num in num_of_size.items():
        # A picture that only becomes the nearest multiple of a patch is not called shrunk.
        if math.prod(fed_sizes[size]) < _SHRUNK_BELOW * math.prod(size):
            shrunk[size] = num
    if not shrunk:
        return ""

    size, num = shrunk.most_common(1)[0]
    sides_px: list[NDArray[np.float64]] = []
    for sample in samples:
        boxes = sample.objects.boxes_norm_xyxy
        sides_px.append((boxes[:, 2:] - boxes[:, :2]) * fed_sizes[sample.width, sample.height])
    num_boxes = sum(len(sides) for sides in sides_px)
    median = ""
    if num_boxes:
        width, height = np.median(np.concatenate(sides_px), axis=0).tolist()
        median = f"; the median box is {width:.0f} x {height:.0f} there"
    several = "" if len(shrunk) == 1 else f" ({num:,} of {shrunk.total():,} that are shrunk)"
    return (
        f"{size[0]} x {size[1]} is fed as {fed_sizes[size][0]} x {fed_sizes[size][1]}{several}{median}; "
        "data.max_pixels feeds more"
    )
