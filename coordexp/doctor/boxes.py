"""In what frame the boxes of a file stand: the reading under which they fit the ground truth best.

How well a reading fits is how much better each object's best box overlaps it than boxes of another image do: what any
boxes of about the right size and place would reach by chance is taken off, so that a bad detector fits badly under
every reading. Sizes of resized images are estimated from pairs of boxes that agree in shape and place but for a scale.

Legend of shapes: ``G`` objects of the images looked at, ``D`` their detections, ``P`` pairs, ``N`` images.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from coordexp.detection.boxes import Floats, Ints
from coordexp.detection.categories import CategoryIndex
from coordexp.detection.detections import Results
from coordexp.detection.frames import CATEGORIES, LAYOUTS, Frame
from coordexp.detection.ground_truth import GroundTruth

_MAX_IMAGES, _MAX_BOXES = 150, 60
_SIDES = (224, 256, 300, 320, 336, 384, 416, 448, 480, 500, 512, 518, 560, 600, 640, 672, 700, 720, 768, 800, 840, 896,
          960, 1000, 1008, 1024, 1064, 1120, 1280, 1333, 1344, 1365, 1400, 1536, 1600, 1920, 2000, 2048)  # fmt: skip
_SCALES = (0.1, 0.125, 0.2, 0.25, 1 / 3, 0.4, 0.5, 0.6, 2 / 3, 0.75, 0.8, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5, 8, 10)
_SMART_FACTORS = (28, 32)
_SMART_TOKENS = (256, 512, 576, 640, 768, 1024, 1280, 1536, 2048, 2304, 2560, 3072, 4096, 8192, 16384)
_SNAP, _LEAST_SCALE = 0.02, 0.1
_LEAST_FIT, _SURE = 0.05, 4.0
_FOUND, _TIGHT = 0.3, 0.75
_LEAST_PAIRS, _LEAST_AGREEMENT = 20, 0.2
_SAME, _SMALL, _DOUBT = 0.0005, 0.02, 3.0
"""Below the first difference of mean IoU, or the second where it may be chance, the simpler reading is taken."""

Outcome = Literal["good", "better", "far better", "unclear"]


@dataclass(frozen=True)
class Fit:
    """How well a reading fits.

    Attributes:
        frame: the reading.
        excess: by image ``[N]``: mean over its objects of the best IoU, less that with another image's boxes.
        mean_iou: mean over objects of the best IoU.
        recall: share of objects with a box at IoU .5 or more, whatever its category.
        tightness: mean of the best IoU over the objects where that is .3 or more.
    """

    frame: Frame
    excess: Floats
    mean_iou: float
    recall: float
    tightness: float

    @property
    def value(self) -> float:
        """The mean excess."""
        return float(self.excess.mean())


@dataclass(frozen=True)
class BoxDiagnosis:
    """What the boxes of a file say.

    Attributes:
        plain: how well they fit as COCO reads them.
        best: how well they fit under the reading that is proposed.
        agree: share of found objects whose box has their category, as COCO reads categories, and as is proposed.
        outcome: ``good``: COCO's reading is the right one; ``better``, ``far better``: the proposed one is;
            ``unclear``: none fits.
        num_images: looked at.
        notes: what else was seen, a sentence each.
    """

    plain: Fit
    best: Fit
    agree: tuple[float, float]
    outcome: Outcome
    num_images: int
    notes: tuple[str, ...]


def diagnose(results: Results, truth: GroundTruth) -> BoxDiagnosis | None:
    """Find the reading under which a file fits its ground truth best; None where no image has objects and boxes."""
    scene = _Scene.of(results, truth)
    if scene is None:
        return None
    fits = {frame: scene.fit(frame) for frame in scene.candidates()}
    plain, best = fits[Frame()], _simplest(list(fits.values()))
    num_images = len(scene.sizes_px)
    if best.value < _LEAST_FIT or _z(best.excess) < _SURE:
        return BoxDiagnosis(plain, plain, (0.0, 0.0), "unclear", num_images, (f"{len(fits)} readings were tried",))
    is_clear = best.value - plain.value >= _LEAST_FIT / 2 and _z(best.excess - plain.excess) >= _SURE
    # A detector that is off fits a little better in some wrong frame, but never tightly.
    if not is_clear or (plain.value > best.value / 2 and best.tightness < _TIGHT):
        best = plain
    frame, notes = scene.refined(best.frame)
    categories, agree = scene.categories(frame)
    frame = replace(frame, categories=categories)
    is_far = plain.value < best.value / 2 or (categories != "ids" and agree[0] < agree[1] / 2)
    outcome: Outcome = "good" if frame == Frame() else "far better" if is_far else "better"
    return BoxDiagnosis(plain, replace(best, frame=frame), agree, outcome, num_images, notes)


def sentences(said: BoxDiagnosis) -> list[str]:
    """Return what was found, for a person."""
    plain, best = said.plain, said.best
    if said.outcome == "unclear":
        return [
            f"no reading fits: objects overlap their best box by {plain.mean_iou:.2f}, hardly more than the boxes of "
            f"another image would ({said.num_images} images, {', '.join(said.notes)})"
        ]
    found = [
        f"read as {best.frame}, objects overlap their best box by {best.mean_iou:.2f} in the mean, and "
        f"{best.recall:.0%} of them by .50 or more ({said.num_images} images)"
    ]
    if best.frame != plain.frame:
        found.append(f"as COCO reads files, {plain.frame}: {plain.mean_iou:.2f}, and {plain.recall:.0%}")
    as_ids, proposed = said.agree
    how = "" if best.frame.categories == "ids" else f" read as {best.frame.categories}, {as_ids:.0%} as it stands"
    found.append(f"{proposed:.0%} of the objects found have a box with their category{how}")
    return [*found, *said.notes]


def _simplest(fits: list[Fit]) -> Fit:
    """Return the first, as simple readings come first, than which none fits better beyond doubt."""
    best = max(fits, key=lambda fit: fit.value)

    def is_as_good(fit: Fit) -> bool:
        less = best.value - fit.value
        return less < _SAME or (less < _SMALL and _z(best.excess - fit.excess) < _DOUBT)

    return next(fit for fit in fits if is_as_good(fit))


def _z(values: Floats) -> float:
    spread = float(values.std(ddof=1)) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(values.mean()) / max(spread, 1e-9)


@dataclass(frozen=True, eq=False)
class _Scene:
    """Some images that have objects and detections, both ordered by image.

    Attributes:
        sizes_px: ``[N, 2]``; ones where the file does not say.
        has_sizes: whether it says.
        gt_begin: ``[N + 1]`` where the objects of each image begin.
        gt_px_xywh: ``[G, 4]``.
        gt_category: ``[G]``.
        dt_begin: ``[N + 1]``.
        dt_boxes: ``[D, 4]`` as they stand in the file.
        dt_category: ``[D]``.
        known: the annotation file's category ids.
        by_name: whether the file has names for categories.
    """

    sizes_px: Floats
    has_sizes: bool
    gt_begin: Ints
    gt_px_xywh: Floats
    gt_category: Ints
    dt_begin: Ints
    dt_boxes: Floats
    dt_category: Ints
    known: Ints
    by_name: bool

    @classmethod
    def of(cls, results: Results, truth: GroundTruth) -> "_Scene | None":
        ordinary = np.flatnonzero(~truth.is_crowd)
        image_ids = np.intersect1d(truth.image_ids[ordinary], results.image_ids)
        if not len(image_ids):
            return None
        chosen = image_ids[np.unique(np.linspace(0, len(image_ids) - 1, _MAX_IMAGES).astype(int))]
        scores = np.zeros(len(results)) if results.scores is None else results.scores
        dt = np.flatnonzero(np.isin(results.image_ids, chosen))
        dt = dt[np.lexsort((-scores[dt], results.image_ids[dt]))]
        gt = ordinary[np.isin(truth.image_ids[ordinary], chosen)]
        gt = gt[np.argsort(truth.image_ids[gt], kind="stable")]
        gt_begin = np.searchsorted(truth.image_ids[gt], np.append(chosen, chosen[-1] + 1))
        # The best boxes, twice as many as there are objects: among hundreds of boxes something always fits.
        first = np.searchsorted(results.image_ids[dt], results.image_ids[dt])
        most = np.minimum(2 * np.diff(gt_begin) + 3, _MAX_BOXES)
        dt = dt[np.arange(len(dt)) - first < most[np.searchsorted(chosen, results.image_ids[dt])]]
        has_sizes = all(truth.sizes_px[int(image_id)] is not None for image_id in chosen)
        return cls(
            sizes_px=truth.sizes_of(chosen) if has_sizes else np.ones((len(chosen), 2)),
            has_sizes=has_sizes,
            gt_begin=gt_begin,
            gt_px_xywh=truth.boxes_px_xywh[gt],
            gt_category=truth.category_ids[gt],
            dt_begin=np.searchsorted(results.image_ids[dt], np.append(chosen, chosen[-1] + 1)),
            dt_boxes=results.boxes[dt],
            dt_category=_category_ids(results, truth)[dt],
            known=np.array(sorted(truth.categories), np.int64),
            by_name=bool(results.names),
        )

    def fit(self, frame: Frame) -> Fit:
        """Return how well a reading fits."""
        boxes = self._boxes(frame)
        right, wrong = self._best_iou(boxes, shift=0)[0], self._best_iou(boxes, shift=1)[0]
        image = np.repeat(np.arange(len(self.sizes_px)), np.diff(self.gt_begin))
        excess = np.bincount(image, right - wrong) / np.diff(self.gt_begin)
        tightness = float(right[right >= _FOUND].mean()) if (right >= _FOUND).any() else 0.0
        return Fit(frame, excess, float(right.mean()), float((right >= 0.5).mean()), tightness)

    def candidates(self) -> Iterator[Frame]:
        """Yield readings, simple ones first; sizes of resized images as the boxes themselves suggest them."""
        units = ["px", "norm1", "norm1000"] if self.has_sizes else ["px"]
        for unit in units:
            yield from (Frame(unit, layout) for layout in LAYOUTS)
        suggested = {layout: list(self._suggested(layout)) for layout in LAYOUTS}
        kinds = ("longest", "norm", "shortest", "letterbox", "smart", "scale")
        for kind in kinds:
            for layout in LAYOUTS:
                yield from (Frame(unit, layout) for unit in suggested[layout] if unit.startswith(kind))

    def _suggested(self, layout: str) -> Iterator[str]:
        """Yield units of resized images: the sizes at which most pairs of one shape agree, or common ones near them."""
        dt = _xyxy_to_centres(Frame(layout=layout).corners(self.dt_boxes))
        gt = _xyxy_to_centres(Frame().corners(self.gt_px_xywh))
        g, d = self._pairs
        keep = (dt[d] > 0).all(axis=1) & (gt[g] > 0).all(axis=1)
        g, d = g[keep], d[keep]
        ratio_P4 = np.log(gt[g] / dt[d])  # of centre and size: pixels of the image for one unit of the file
        centre, size = ratio_P4[:, :2], ratio_P4[:, 2:]
        image = np.searchsorted(self.gt_begin, g, side="right") - 1
        agree = (np.abs(centre - size) < 0.15).all(axis=1)
        padded = np.abs(size[:, 0] - size[:, 1]) < 0.1
        scale, sides = np.exp((centre + size) / 2), self.sizes_px[image]
        one = np.exp(size.mean(axis=1))
        isotropic = agree & (np.abs(np.diff(np.log(scale), axis=1)[:, 0]) < 0.1)
        for mode in _modes(1 / np.exp(np.log(scale[isotropic]).mean(axis=1))):
            if abs(np.log(mode)) < _LEAST_SCALE:  # as well a detector that is off by a little
                continue
            common = (value for value in _SCALES if abs(value / mode - 1) < _SNAP)
            yield from (f"scale{value:.4g}" for value in (*common, mode))
        if not self.has_sizes:
            return
        stretched = np.concatenate([(sides / scale)[agree][:, 0], (sides / scale)[agree][:, 1]])
        yield from (f"norm{side}" for side in _sides(stretched))
        even = np.exp(np.log(scale[isotropic]).mean(axis=1))
        yield from (f"longest{side}" for side in _sides(sides[isotropic].max(axis=1) / even))
        for side in _sides(sides[isotropic].min(axis=1) / even):
            yield from (f"shortest{side}", f"shortest{side}-1333")
        yield from (f"letterbox{side}" for side in _sides(sides[padded].max(axis=1) / one[padded]))
        pixels = (sides / scale)[agree].prod(axis=1)
        for factor in _SMART_FACTORS:
            yield f"smart{factor}"
            limits = {tokens * factor**2 for tokens in _SMART_TOKENS}
            for value in _modes(pixels):
                yield from (f"smart{factor}-{limit}" for limit in sorted(limits) if 0.85 < value / limit < 1.05)

    @cached_property
    def _pairs(self) -> tuple[Ints, Ints]:
        """Every object with every detection of its image: ``[P]`` rows of both."""
        num_gt, num_dt = np.diff(self.gt_begin), np.diff(self.dt_begin)
        g = np.repeat(np.arange(self.gt_begin[-1]), np.repeat(num_dt, num_gt))
        d = [np.tile(np.arange(a, b), n) for a, b, n in zip(self.dt_begin, self.dt_begin[1:], num_gt, strict=False)]
        return g, np.concatenate(d)

    def refined(self, frame: Frame) -> tuple[Frame, tuple[str, ...]]:
        """Tell thousandths from 999ths, and see whether pixels are counted from 1, where the boxes can tell."""
        boxes = self._boxes(frame)
        overlap, row = self._best_iou(boxes, shift=0)
        good = overlap > 0.6
        if np.count_nonzero(good) < _LEAST_PAIRS or frame.unit not in ("norm1000", "px"):
            return frame, ()
        truth = self.gt_px_xywh[good]
        true, found = Frame().corners(truth), Frame().corners(boxes[row[good]])
        weight = 1 / truth[:, 2:].prod(axis=1)  # the smaller a box, the better it says where it lies
        if frame.unit == "px":
            first, last = (_whole_offset((found - true)[:, at : at + 2], weight) for at in (0, 2))
            said = f"corners are {first:+d} and {last:+d} pixels off in the mean of {len(true)} good pairs"
            return replace(frame, first=-first, last=-last), (said,) if first or last else ()
        sides = np.tile(self.sizes_px[np.repeat(np.arange(len(self.sizes_px)), np.diff(self.gt_begin))[good]], 2)
        slope, error = _slope((true / sides).ravel(), (found / sides).ravel(), np.repeat(weight, 4))
        if abs(slope - 0.9995) < 2 * error:  # .999 where the far border is 999
            return frame, ("whether the far border is 999 or 1000 cannot be told from these boxes",)
        return replace(frame, unit="norm999" if slope < 0.9995 else "norm1000"), ()

    def categories(self, frame: Frame) -> tuple[str, tuple[float, float]]:
        """Return how categories are to be read, and the shares that agree as COCO reads them and so."""
        overlap, row = self._best_iou(self._boxes(frame), shift=0)
        good = overlap >= 0.5
        true, given = self.gt_category[good], self.dt_category[row[good]]
        if not len(true):
            return "ids", (0.0, 0.0)
        hits = {name: Frame(categories=name).category_ids(given, self.known.tolist()) == true for name in CATEGORIES}
        if self.by_name:
            hits = {"ids": given == true}
        best = max(hits, key=lambda name: np.count_nonzero(hits[name]))  # of equal ones the first
        gained = int(np.count_nonzero(hits[best] & ~hits["ids"]))
        lost = int(np.count_nonzero(hits["ids"] & ~hits[best]))
        if gained <= 3 * lost + 10 or hits[best].mean() < _LEAST_AGREEMENT:
            best = "ids"
        return best, (float(hits["ids"].mean()), float(hits[best].mean()))

    def _boxes(self, frame: Frame) -> Floats:
        sizes = np.repeat(self.sizes_px, np.diff(self.dt_begin), axis=0)
        return np.ascontiguousarray(frame.boxes_px_xywh(self.dt_boxes, sizes))

    def _best_iou(self, boxes: Floats, *, shift: int) -> tuple[Floats, Ints]:
        """Return for each object its largest IoU with a box, and the box's row; shifted: with another image's."""
        from coordexp.detection.pair_kernels import fill_best_pairs

        begin, end = np.roll(self.dt_begin[:-1], shift), np.roll(self.dt_begin[1:], shift)
        best, row = np.zeros(len(self.gt_px_xywh)), np.zeros(len(self.gt_px_xywh), np.int64)
        fill_best_pairs(self.gt_begin, begin, end, self.gt_px_xywh, boxes, best, row)
        return best, row


def _category_ids(results: Results, truth: GroundTruth) -> Ints:
    """Return ``[D]`` categories as they stand, names as the ids they name, or -1."""
    if not results.names:
        return results.categories
    index = CategoryIndex(truth.categories)
    ids = [index.find(name) for name in results.names]
    return np.array([-1 if found is None else found for found in ids], np.int64)[results.categories]


def _xyxy_to_centres(corners: Floats) -> Floats:
    """Return ``[M, 4]`` centre and size."""
    return np.concatenate([(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]], axis=1)


def _modes(values: Floats, *, count: int = 2) -> list[float]:
    """Return the values around which most lie, on a logarithmic scale."""
    found: list[float] = []
    logs = np.log(values[values > 0])
    for _ in range(count):
        if len(logs) < 5:
            break
        bins = np.round(logs / 0.01).astype(int)
        numbers, counts = np.unique(bins, return_counts=True)
        near = np.array([counts[np.abs(numbers - number) <= 1].sum() for number in numbers])
        peak = numbers[near.argmax()] * 0.01
        found.append(float(np.exp(np.median(logs[np.abs(logs - peak) < 0.03]))))
        logs = logs[np.abs(logs - peak) > 0.05]
    return found


def _sides(values: Floats) -> list[str]:
    """Return sides of resized images near the modes of estimates: common ones first, then the nearest whole number."""
    sides = [side for mode in _modes(values) for side in (*_SIDES, round(mode)) if abs(side / mode - 1) < _SNAP]
    return [str(side) for side in dict.fromkeys(sides) if side > 1]


def _whole_offset(off_px: Floats, weight: Floats) -> int:
    """Return by how many whole pixels ``[P, 2]`` differences are off in both directions: -1, 0 or 1; 0 if not clear."""
    means = [_slope(np.ones(len(off_px)), off_px[:, at], weight) for at in range(2)]
    near = {round(mean) for mean, error in means if abs(mean - round(mean)) < 0.35 and error < 0.2}
    return near.pop() if len(near) == 1 and near <= {-1, 0, 1} else 0


def _slope(x: Floats, y: Floats, weight: Floats) -> tuple[float, float]:
    """Return the factor of ``y = factor * x`` by weighted least squares, and its standard error."""
    factor = float((weight * x * y).sum() / (weight * x * x).sum())
    variance = ((weight * x * (y - factor * x)) ** 2).sum() / (weight * x * x).sum() ** 2
    return factor, float(np.sqrt(variance))
