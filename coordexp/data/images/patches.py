"""RGB pixels -> uint8 patches, and uint8 patches -> the pixel values a Qwen3-VL vision tower takes.

Patches travel as bytes and are normalised where the model is: an eighth of the bytes that the
Hugging Face processor makes, and the same numbers.
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


class ImageProcessor(Protocol):
    """What is read from a Hugging Face Qwen2-VL / Qwen3-VL image processor."""

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
    """How images become patches; lengths in pixels, ``resample`` as PIL counts its filters."""

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
        """Read the numbers of an image processor; explicit pixel limits win over its own.

        Raises:
            ConfigError: if the limits that result are the wrong way round.
        """
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
        rows, columns = self.grid(width=width, height=height)
        return rows * columns // self.merge_size**2

    def fed_size(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height in pixels of the copy of a picture that is cut into patches."""
        rows, columns = self.grid(width=width, height=height)
        return columns * self.patch_size, rows * self.patch_size


def to_patches(picture: Image.Image, spec: ImageSpec) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Resize and cut an RGB image.

    Returns:
        ``[P, 3 * patch * patch]`` uint8 in the merge order of Qwen-VL, and the grid (rows, columns), P of them.
    """
    rows, columns = spec.grid(width=picture.width, height=picture.height)
    size, merge = spec.patch_size, spec.merge_size
    resized = picture.resize((columns * size, rows * size), Image.Resampling(spec.resample))
    pixels = np.asarray(resized).reshape(rows // merge, merge, size, columns // merge, merge, size, 3)
    patches = pixels.transpose(0, 3, 1, 4, 6, 2, 5)
    return np.ascontiguousarray(patches).reshape(rows * columns, 3 * size * size), (rows, columns)


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to a device, without the host waiting for what the device still has to do."""
    return (values.pin_memory() if device.type == "cuda" else values).to(device, non_blocking=True)


def pixel_values(patches: Tensor, spec: ImageSpec) -> Tensor:
    """Normalise patches on their device, and repeat them over the temporal patch.

    From ``[P, 3 * patch * patch]`` uint8 to ``[P, 3 * temporal * patch * patch]`` float32, what
    ``model(pixel_values=...)`` takes.
    """
    side = spec.patch_size
    # The Hugging Face processor scales in float64 and normalises in float32: the same here, bit for bit.
    scaled = (patches.view(-1, 3, 1, side, side).to(torch.float64) * spec.rescale_factor).to(torch.float32)
    mean = upload(torch.tensor(spec.mean), patches.device).view(1, 3, 1, 1, 1)
    std = upload(torch.tensor(spec.std), patches.device).view(1, 3, 1, 1, 1)
    values = (scaled - mean) / std
    return values.expand(-1, 3, spec.temporal_patch_size, side, side).reshape(patches.shape[0], -1)


def fed_sentence(samples: Sequence[Sample], spec: ImageSpec) -> str:
    """Return what the usual picture shrinks to, and its median box there; "" where no picture is shrunk."""
    sizes = Counter((sample.width, sample.height) for sample in samples)
    fed = {size: spec.fed_size(*size) for size in sizes}
    # The nearest multiple of a patch is no shrinking.
    shrunk = Counter({(w, h): n for (w, h), n in sizes.items() if math.prod(fed[w, h]) < 0.9 * w * h})
    if not shrunk:
        return ""
    (width, height), number = shrunk.most_common(1)[0]
    columns, rows = fed[width, height]
    sides = [
        (box[2:] - box[:2]) * fed[sample.width, sample.height]
        for sample in samples
        for box in sample.objects.boxes_norm_xyxy
    ]
    box = "" if not sides else "; the median box is {:.0f} x {:.0f} there".format(*np.median(sides, axis=0).tolist())
    several = "" if len(shrunk) == 1 else f" ({number:,} of {shrunk.total():,} that are shrunk)"
    return f"{width} x {height} is fed as {columns} x {rows}{several}{box}; data.max_pixels feeds more"
