"""In what frame the boxes of a file stand: the frame under which they fit the ground truth best.

The fit of a frame is the IoU of each object with its best box, less the IoU that it has with the best box of another
image. The second is what any boxes of about the right size and place reach by chance. Without it, a bad detector would
seem to fit well in whichever frame makes its boxes large.
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
"""With fewer images nothing is said: some frame fits a few boxes by chance."""
_MAX_IMAGES = 150
_MAX_BOXES = 60  # of an image
_LEAST_FIT = 0.05  # mean IoU above chance
_LEAST_RESIZED = 0.05  # of a side
_SURE = 4.0  # standard errors
_LEAST_GAIN = 10  # objects whose category is right


@dataclass(frozen=True)
class Fit:
    """How well a frame fits.

    Attributes:
        frame: how the boxes are read.
        excess: for each image, the mean over its objects of the best IoU less that of chance.
        mean_iou: mean of the best IoU over all objects.
    """

    frame: Frame
    excess: Floats
    mean_iou: float


@dataclass(frozen=True)
class BoxDiagnosis:
    """How well the boxes of a file fit as files of its form are read, and in the frame that fits best.

    Attributes:
        plain: the fit in the frame of the file's form; COCO's results are in pixels, xywh.
        best: the fit in the best frame.
        agree: of the objects that a box finds, the share whose box has their category, under ``plain`` and ``best``.
        outcome: ``good``: the two frames are the same; ``unclear``: no frame fits.
    """

    plain: Fit
    best: Fit
    agree: tuple[float, float]
    outcome: Literal["good", "better", "far better", "unclear"]

    @property
    def sentence(self) -> str:
        """What the diagnosis says, for a person."""
        images = counted(len(self.best.excess), "image")
        if self.outcome == "unclear":
            return (
                f"no reading fits: objects overlap their best box by {self.plain.mean_iou:.2f}, hardly more than the "
                f"boxes of another image would ({images})"
            )
        plain_agree, best_agree = self.agree
        best = (
            f"read as {self.best.frame}, objects overlap their best box by {self.best.mean_iou:.2f} and "
            f"{best_agree:.0%} have its category ({images})"
        )
        if self.outcome == "good":
            return best
        plain = f"{self.plain.frame}, by {self.plain.mean_iou:.2f} and {plain_agree:.0%}"
        return f"{best}; as files of its form are read, {plain}"


@dataclass(frozen=True, eq=False)
class _Image:
    """Objects of an image, and its boxes with the highest scores as they are written in the file."""

    size_px: Floats
    gt_px_xywh: Floats
    gt_category: Ints
    boxes: Floats
    category: Ints

    def overlaps(self, frame: Frame, objects_px_xywh: Floats) -> Floats:
        """Return the IoU of each object (rows) with each box of this image, read in ``frame`` (columns)."""
        sizes = np.tile(self.size_px, (len(self.boxes), 1))
        return iou_table(objects_px_xywh, frame.boxes_px_xywh(self.boxes, sizes))


def diagnose(results: Results, truth: GroundTruth) -> BoxDiagnosis | None:
    """Find the frame in which the boxes of a file fit the ground truth best.

    Returns:
        The diagnosis; None if fewer than ``MIN_IMAGES`` images have both objects and boxes.
    """
    images, has_sizes = _images(results, truth)
    if len(images) < MIN_IMAGES:
        return None

    plain_frame = replace(results.frame, categories="ids")
    frames = [plain_frame, *_other_frames(plain_frame, images, has_sizes=has_sizes)]
    fits = [_fit(images, frame) for frame in frames]
    plain = fits[0]
    closest = max(fits, key=lambda fit: fit.excess.mean())
    # Several frames may fit about as well. The first of them is taken, and the file's own frame is the first of all.
    best = next(fit for fit in fits if _z(closest.excess - fit.excess) < _SURE)
    if best.excess.mean() < _LEAST_FIT or _z(best.excess) < _SURE:
        return BoxDiagnosis(plain, plain, (0.0, 0.0), "unclear")
    if best.excess.mean() - plain.excess.mean() < _LEAST_FIT / 2:
        best = plain

    # A file with names of categories says itself which category a box has.
    kinds = CATEGORIES[:1] if results.is_named else CATEGORIES
    plain_kind = "ids" if results.is_named else results.frame.categories
    best_kind, agree = _categories(images, best.frame, sorted(truth.categories), kinds=kinds, plain_kind=plain_kind)
    plain = replace(plain, frame=replace(plain.frame, categories=plain_kind))
    best = replace(best, frame=replace(best.frame, categories=best_kind))
    if best.frame == plain.frame:
        return BoxDiagnosis(plain, best, agree, "good")

    plain_agree, best_agree = agree
    boxes_fit_far_better = plain.excess.mean() < best.excess.mean() / 2
    categories_fit_far_better = best_kind != plain_kind and plain_agree < best_agree / 2
    is_far_better = boxes_fit_far_better or categories_fit_far_better
    return BoxDiagnosis(plain, best, agree, "far better" if is_far_better else "better")


def _other_frames(plain_frame: Frame, images: list[_Image], *, has_sizes: bool) -> list[Frame]:
    """Return the frames that are compared with the file's own; without sizes of images only pixels can be."""
    units = [unit for unit in UNITS if _is_apart(unit, images)] if has_sizes else ["px"]
    frames: list[Frame] = []
    for unit in units:
        frames += [Frame(unit, layout) for layout in LAYOUTS]
    return [frame for frame in frames if frame != plain_frame]


def _images(results: Results, truth: GroundTruth) -> tuple[list[_Image], bool]:
    """Return images that have objects and boxes, and whether the annotation file has the sizes of all of them.

    At most ``_MAX_IMAGES`` are taken, evenly spread over the ids.
    """
    ordinary = np.flatnonzero(~truth.is_crowd)
    common_ids = np.intersect1d(truth.image_ids[ordinary], results.image_ids)
    places = np.linspace(0, len(common_ids) - 1, min(len(common_ids), _MAX_IMAGES)).astype(int)
    chosen_ids = common_ids[np.unique(places)]
    has_sizes = all(truth.sizes_px[int(image_id)] is not None for image_id in chosen_ids)
    sizes_px = truth.sizes_of(chosen_ids) if has_sizes else np.ones((len(chosen_ids), 2))
    scores = np.zeros(len(results)) if results.scores is None else results.scores
    images: list[_Image] = []
    for image_id, size_px in zip(chosen_ids, sizes_px, strict=True):
        gt = ordinary[truth.image_ids[ordinary] == image_id]
        dt = np.flatnonzero(results.image_ids == image_id)
        # About twice as many boxes as objects, the best ones: among hundreds of boxes one fits in any frame.
        num_boxes = min(2 * len(gt) + 3, _MAX_BOXES)
        best_dt = dt[np.argsort(-scores[dt], kind="stable")][:num_boxes]
        image = _Image(
            size_px=size_px,
            gt_px_xywh=truth.boxes_px_xywh[gt],
            gt_category=truth.category_ids[gt],
            boxes=results.boxes[best_dt],
            category=results.categories[best_dt],
        )
        images.append(image)
    return images, has_sizes


def _fit(images: list[_Image], frame: Frame) -> Fit:
    """Return how well a frame fits. The boxes of the next image show what chance reaches."""
    best_ious: list[Floats] = []
    excess: list[float] = []
    for image, next_image in zip(images, [*images[1:], images[0]], strict=True):
        ious = image.overlaps(frame, image.gt_px_xywh).max(axis=1)
        chance_ious = next_image.overlaps(frame, image.gt_px_xywh).max(axis=1)
        best_ious.append(ious)
        excess.append(ious.mean() - chance_ious.mean())
    return Fit(frame, np.array(excess), float(np.concatenate(best_ious).mean()))


def _categories(
    images: list[_Image], frame: Frame, known_ids: list[int], *, kinds: tuple[str, ...], plain_kind: str
) -> tuple[str, tuple[float, float]]:
    """Find out how the file numbers categories: by id, or by place among the ids from 0 or from 1.

    Only objects that a box finds (IoU of .5 or more) are asked.

    Args:
        images: objects and boxes.
        frame: how the boxes are read.
        known_ids: the category ids of the annotation file, in order.
        kinds: the ways of numbering to try.
        plain_kind: the way of the file's form. Another one needs ``_LEAST_GAIN`` and a tenth more hits to win.

    Returns:
        The way of numbering, and the shares of objects whose box has their category, by ``plain_kind`` and by it.
    """
    true_per_image: list[Ints] = []
    written_per_image: list[Ints] = []
    for image in images:
        ious = image.overlaps(frame, image.gt_px_xywh)
        is_found = ious.max(axis=1) >= 0.5
        best_box = ious.argmax(axis=1)
        true_per_image.append(image.gt_category[is_found])
        written_per_image.append(image.category[best_box[is_found]])
    true = np.concatenate(true_per_image)
    written = np.concatenate(written_per_image)
    if not len(true):
        return plain_kind, (0.0, 0.0)

    hits: dict[str, int] = {}
    for kind in kinds:
        category_ids = Frame(categories=kind).category_ids(written, known_ids)
        hits[kind] = int((category_ids == true).sum())
    best_kind = max(kinds, key=lambda kind: hits[kind])  # of equal ones the first
    if hits[best_kind] - hits[plain_kind] < max(_LEAST_GAIN, len(true) / 10):
        best_kind = plain_kind
    return best_kind, (hits[plain_kind] / len(true), hits[best_kind] / len(true))


def _is_apart(unit: str, images: list[_Image]) -> bool:
    """Return whether pixels of a unit differ enough from the image's own.

    Qwen's resizing leaves many images nearly as they are. There, boxes a little too large would fit the resized image.
    """
    if not unit.startswith("smart"):
        return True
    sizes_px = np.array([image.size_px for image in images])
    change = np.abs(smart_sizes(unit, sizes_px) / sizes_px - 1)  # share of width and height
    return float(change.max(axis=1).mean()) >= _LEAST_RESIZED


def _z(values: Floats) -> float:
    """Return the mean in standard errors."""
    spread = float(values.std(ddof=1)) / np.sqrt(len(values))
    return float(values.mean()) / max(spread, 1e-9)
