"""In what frame the boxes of a file stand: the reading under which they fit the ground truth best.

How well a reading fits is how much better each object's best box overlaps it than boxes of another image do. What any
boxes of about the right size and place reach by chance is taken off, so that a bad detector fits badly in every frame.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coordexp.detection.boxes import Floats, Ints, iou_table
from coordexp.detection.forms.frames import CATEGORIES, LAYOUTS, UNITS, Frame, smart_sizes
from coordexp.detection.forms.results import Results
from coordexp.detection.ground_truth import GroundTruth
from coordexp.errors import counted

MIN_IMAGES = 10
"""Of fewer images nothing is said: some frame fits a few boxes by chance."""
_MAX_IMAGES, _MAX_BOXES = 150, 60
_LEAST_FIT = 0.05
_LEAST_RESIZED = 0.05  # of a side
_SURE = 4.0  # standard errors
_LEAST_GAIN = 10  # objects whose category is right


@dataclass(frozen=True)
class Fit:
    """How well a reading fits: by image the mean excess over chance, and over all objects the mean of the best IoU."""

    frame: Frame
    excess: Floats
    mean_iou: float


@dataclass(frozen=True)
class BoxDiagnosis:
    """How well the boxes of a file fit as COCO reads them, and under the reading that is proposed."""

    plain: Fit
    best: Fit
    agree: tuple[float, float]  # of found objects, the share whose box has their category, by each reading
    outcome: Literal["good", "better", "far better", "unclear"]  # good: COCO's is the right one; unclear: none fits

    @property
    def sentence(self) -> str:
        plain, best, num_images = self.plain, self.best, len(self.best.excess)
        if self.outcome == "unclear":
            return (
                f"no reading fits: objects overlap their best box by {plain.mean_iou:.2f}, hardly more than the boxes "
                f"of another image would ({counted(num_images, 'image')})"
            )
        said = f"read as {best.frame}, objects overlap their best box by {best.mean_iou:.2f} and {self.agree[1]:.0%} "
        said += f"have its category ({counted(num_images, 'image')})"
        if self.outcome == "good":
            return said
        return f"{said}; as files of its form are read, {plain.frame}, by {plain.mean_iou:.2f} and {self.agree[0]:.0%}"


@dataclass(frozen=True, eq=False)
class _Image:
    """Objects of an image, and its best-scored boxes as written in the file."""

    size_px: Floats
    gt_px_xywh: Floats
    gt_category: Ints
    boxes: Floats
    category: Ints

    def overlaps(self, frame: Frame, objects_px_xywh: Floats) -> Floats:
        sizes = np.tile(self.size_px, (len(self.boxes), 1))
        return iou_table(objects_px_xywh, frame.boxes_px_xywh(self.boxes, sizes))


def diagnose(results: Results, truth: GroundTruth) -> BoxDiagnosis | None:
    """Find the reading under which a file fits its ground truth best; None where too few images have both."""
    images, has_sizes = _images(results, truth)
    if len(images) < MIN_IMAGES:
        return None
    units = [unit for unit in UNITS if has_sizes and _is_apart(unit, images)] if has_sizes else ["px"]
    frames = [Frame(unit, layout) for unit in units for layout in LAYOUTS]
    given = replace(results.frame, categories="ids")
    fits = [_fit(images, frame) for frame in [given, *(found for found in frames if found != given)]]
    plain, closest = fits[0], max(fits, key=lambda fit: fit.excess.mean())
    # The first reading that fits as well.
    best = next(fit for fit in fits if _z(closest.excess - fit.excess) < _SURE)
    if best.excess.mean() < _LEAST_FIT or _z(best.excess) < _SURE:
        return BoxDiagnosis(plain, plain, (0.0, 0.0), "unclear")
    if best.excess.mean() - plain.excess.mean() < _LEAST_FIT / 2:
        best = plain
    kinds = CATEGORIES[:1] if results.is_named else CATEGORIES
    own = "ids" if results.is_named else results.frame.categories
    categories, agree = _categories(images, best.frame, sorted(truth.categories), kinds=kinds, own=own)
    plain, best = (
        replace(fit, frame=replace(fit.frame, categories=kind)) for fit, kind in ((plain, own), (best, categories))
    )
    is_far = plain.excess.mean() < best.excess.mean() / 2 or (categories != own and agree[0] < agree[1] / 2)
    outcome = "good" if best.frame == plain.frame else "far better" if is_far else "better"
    return BoxDiagnosis(plain, best, agree, outcome)


def _images(results: Results, truth: GroundTruth) -> tuple[list[_Image], bool]:
    """Return images that have objects and boxes, and whether the annotation file has all their sizes."""
    ordinary = np.flatnonzero(~truth.is_crowd)
    common = np.intersect1d(truth.image_ids[ordinary], results.image_ids)
    chosen = common[np.unique(np.linspace(0, len(common) - 1, min(len(common), _MAX_IMAGES)).astype(int))]
    has_sizes = all(truth.sizes_px[int(image_id)] is not None for image_id in chosen)
    sizes_px = truth.sizes_of(chosen) if has_sizes else np.ones((len(chosen), 2))
    scores = np.zeros(len(results)) if results.scores is None else results.scores
    images: list[_Image] = []
    for image_id, size_px in zip(chosen, sizes_px, strict=True):
        gt, dt = ordinary[truth.image_ids[ordinary] == image_id], np.flatnonzero(results.image_ids == image_id)
        # The best boxes, twice as many as there are objects: among hundreds of boxes something always fits.
        dt = dt[np.argsort(-scores[dt], kind="stable")][: min(2 * len(gt) + 3, _MAX_BOXES)]
        found = _Image(
            size_px, truth.boxes_px_xywh[gt], truth.category_ids[gt], results.boxes[dt], results.categories[dt]
        )
        images.append(found)
    return images, has_sizes


def _fit(images: list[_Image], frame: Frame) -> Fit:
    right = [image.overlaps(frame, image.gt_px_xywh).max(axis=1) for image in images]
    others = [*images[1:], images[0]]
    wrong = [other.overlaps(frame, image.gt_px_xywh).max(axis=1) for image, other in zip(images, others, strict=True)]
    excess = np.array([own.mean() - chance.mean() for own, chance in zip(right, wrong, strict=True)])
    return Fit(frame, excess, float(np.concatenate(right).mean()))


def _categories(
    images: list[_Image], frame: Frame, known: list[int], *, kinds: tuple[str, ...], own: str
) -> tuple[str, tuple[float, float]]:
    """Return how categories are to be read, and the shares that agree as the file's form has them and so."""
    true: list[Ints] = []
    given: list[Ints] = []
    for image in images:
        overlap = image.overlaps(frame, image.gt_px_xywh)
        is_found = overlap.max(axis=1) >= 0.5
        true.append(image.gt_category[is_found])
        given.append(image.category[overlap.argmax(axis=1)[is_found]])
    truths, categories = np.concatenate(true), np.concatenate(given)
    if not len(truths):
        return own, (0.0, 0.0)
    hits = {kind: int((Frame(categories=kind).category_ids(categories, known) == truths).sum()) for kind in kinds}
    best = max(kinds, key=lambda kind: hits[kind])  # of equal ones the first
    if hits[best] - hits[own] < max(_LEAST_GAIN, len(truths) / 10):
        best = own
    return best, (hits[own] / len(truths), hits[best] / len(truths))


def _is_apart(unit: str, images: list[_Image]) -> bool:
    """Return whether a resized image is far enough from the image itself: boxes a little too large fit a near one."""
    if not unit.startswith("smart"):
        return True
    sizes_px = np.array([image.size_px for image in images])
    return float(np.abs(smart_sizes(unit, sizes_px) / sizes_px - 1).max(axis=1).mean()) >= _LEAST_RESIZED


def _z(values: Floats) -> float:
    spread = float(values.std(ddof=1)) / np.sqrt(len(values))
    return float(values.mean()) / max(spread, 1e-9)
