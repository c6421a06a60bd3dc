"""The compiled loops of average precision under integer image weights.

**AP under weights: match once, then reweigh.** A bootstrap draws images with replacement, so that image ``i`` is in a
resample ``w_i`` times. Detections are matched within an image, and copies of an image match as it does. So they are
matched and sorted by score once, and AP on any resample is counted from that one ranking, in which each detection and
each object stands for ``w_i`` of them:

    precision at a hit = (hits so far) / (detections so far)        both as sums of weights
    recall at a hit    = (hits so far) / (objects)

COCO's precision at a recall level is the best one at that recall or above, and AP is the mean over 101 levels. The
value is that of COCOeval if each copy stands next to its original in the file; a test really repeats the images.

- Precision only falls at a miss, so only hits are walked through; of the other detections their number is enough. What
  is ignored (on a crowd, outside the area range) counts neither as a hit nor as a detection.
- Copies of an image repeat its detections of equal score as a block, ``d1 d2 d1 d2``, so such a run is walked copy by
  copy.
- A recall level is reached by the comparison that pycocotools makes, ``hits / objects >= level`` in floats.
- One walk serves 32 resamples, side by side in the innermost loop: four times as fast as a walk for each.

Legend of shapes: ``R`` weightings, ``N`` images, ``K`` categories, ``D`` detections, ``T`` IoU thresholds, ``L`` = 101
recall levels. Sets of thresholds are bits of an integer, bit 0 being the lowest.
"""

import math

import numpy as np

from coordexp.detection.boxes import RECALL_LEVELS, Floats
from coordexp.detection.compiled import compiled
from coordexp.detection.matching.matches import Index, Matches, Weights

NUM_LEVELS = len(RECALL_LEVELS)
_WIDTH = 32
_EPS = float(np.spacing(1))


@compiled
def _num_levels(recall: float) -> float:
    """Return how many recall levels a recall reaches: 0 without a hit. Level ``i`` is the float ``0.01 * i``."""
    level = math.floor(100.0 * recall)
    level += 1.0 if 0.01 * (level + 1.0) <= recall else 0.0
    level -= 1.0 if 0.01 * level > recall else 0.0
    return level + 1.0 if recall > 0.0 else 0.0


@compiled
def _counted(matches: Matches, k: int, weights_NR: Weights) -> tuple[Index, Index]:
    """Return a category's objects ``[R]``, and its detections up to each, in order of score, ``[D, R]``."""
    num_draws = weights_NR.shape[1]
    objects, num = np.zeros(num_draws, np.int32), np.zeros(num_draws, np.int32)
    for row in range(matches.gt_start[k], matches.gt_start[k + 1]):
        image, count = matches.gt_image[row], matches.gt_count[row]
        for r in range(num_draws):
            objects[r] += count * weights_NR[image, r]
    seen = np.empty((matches.start[k + 1] - matches.start[k], num_draws), np.int32)
    for n in range(len(seen)):
        image = matches.image[matches.start[k] + n]
        for r in range(num_draws):
            num[r] += weights_NR[image, r]
            seen[n, r] = num[r]
    return objects, seen


@compiled
def fill_curves(matches: Matches, weights: Weights, precision: Floats, recall: Floats) -> None:
    """Set precision ``[T, L, K]`` and recall ``[T, K]`` as COCOeval accumulates them, -1 without ground truth."""
    precision[:], recall[:] = -1.0, -1.0
    for k in range(recall.shape[1]):
        counted, seen = _counted(matches, k, weights.reshape((-1, 1)))
        num_objects, start = counted[0], matches.start[k]
        at_hit = np.empty(1 + (seen[-1, 0] if len(seen) else 0))
        for t in range(len(recall) if num_objects else 0):
            num, skipped, best = 0, 0, 0.0
            for at in range(matches.event_start[t, k], matches.event_start[t, k + 1]):
                d, length = matches.event[at], matches.run[matches.event[at]]
                copies = int(weights[matches.image[d]])
                for place in range(copies * length):
                    member = d + place % length
                    if (matches.ignored[member] >> t) & 1:
                        skipped += 1
                    elif (matches.hit[member] >> t) & 1:
                        num += 1
                        at_hit[num] = num / (seen[d - start, 0] - copies + place + 1 - skipped + _EPS)
            recall[t, k] = num / num_objects
            precision[t, :, k] = 0.0
            for hits in range(num, 0, -1):
                best = max(best, at_hit[hits])
                lower, upper = _num_levels((hits - 1) / num_objects), _num_levels(hits / num_objects)
                precision[t, int(lower) : int(upper), k] = best


@compiled
def _totals(matches: Matches, k: int, t: int, weights_NR: Weights) -> tuple[Index, Index]:
    """Return a category's hits and its ignored detections at a threshold, ``[R]`` each."""
    hits, ignored = np.zeros(weights_NR.shape[1], np.int32), np.zeros(weights_NR.shape[1], np.int32)
    for at in range(matches.event_start[t, k], matches.event_start[t, k + 1]):
        for d in range(matches.event[at], matches.event[at] + matches.run[matches.event[at]]):
            image = matches.image[d]
            if (matches.ignored[d] >> t) & 1:
                for r in range(len(hits)):
                    ignored[r] += weights_NR[image, r]
            elif (matches.hit[d] >> t) & 1:
                for r in range(len(hits)):
                    hits[r] += weights_NR[image, r]
    return hits, ignored


@compiled
def _set_one(entry: int, length: int, copies: Weights, seen: Index, num: Index, place: Index) -> None:
    """Set whether there is an entry of a run's copies, and its place in the ranking, ``[R]`` each."""
    for r in range(len(copies)):
        num[r] = 1 if entry // length < copies[r] else 0
        place[r] = seen[r] - copies[r] + entry + 1


@compiled
def _add_precisions(
    matches: Matches, k: int, t: int, weights_NR: Weights, objects: Index, seen: Index, total: Floats
) -> None:  # fmt: skip
    """Add to ``total`` ``[R]`` the best precision at each recall level of a category at a threshold.

    From the last detection to the first: so the best precision met so far is the best at this recall or above. A hit
    of which a draw has no copy changes nothing there: its precision is below that of the hit before it.
    """
    hits, ignored = _totals(matches, k, t, weights_NR)
    best, upper = np.zeros(len(total)), np.empty(len(total))
    for r in range(len(total)):
        upper[r] = _num_levels(hits[r] / objects[r])
    copies, place = np.empty(len(total), np.int32), np.empty(len(total), np.int32)
    for at in range(matches.event_start[t, k + 1] - 1, matches.event_start[t, k] - 1, -1):
        d, length = matches.event[at], int(matches.run[matches.event[at]])
        image, n = matches.image[d], d - matches.start[k]
        # Of one detection all copies at once: the last of them has their highest precision.
        for entry in range(length * (weights_NR[image].max() if length > 1 else 1) - 1, -1, -1):
            member = d + entry % length
            if length > 1:
                _set_one(entry, length, weights_NR[image], seen[n], copies, place)
            else:
                for r in range(len(total)):
                    copies[r], place[r] = weights_NR[image, r], seen[n, r]
            if (matches.ignored[member] >> t) & 1:
                for r in range(len(total)):
                    ignored[r] -= copies[r]
            elif (matches.hit[member] >> t) & 1:
                for r in range(len(total)):
                    best[r] = max(best[r], hits[r] / (place[r] - ignored[r] + _EPS))
                    hits[r] -= copies[r]
                    lower = _num_levels(hits[r] / objects[r])
                    total[r] += best[r] * (upper[r] - lower)
                    upper[r] = lower


@compiled
def fill_average_precisions(matches: Matches, first: int, weights_RN: Weights, out: Floats) -> None:
    """Set ``out`` ``[R, T, K]`` to average precisions at thresholds from ``first`` on, NaN without ground truth."""
    out[:] = np.nan
    for r in range(0, len(out), _WIDTH):
        weights_NR = weights_RN[r : r + _WIDTH].T.copy()
        for k in range(out.shape[2]):
            objects, seen = _counted(matches, k, weights_NR)
            for t in range(out.shape[1]):
                total = np.zeros(len(objects))
                _add_precisions(matches, k, first + t, weights_NR, objects, seen, total)
                for i in range(len(objects)):
                    if objects[i]:
                        out[r + i, t, k] = total[i] / NUM_LEVELS


@compiled
def fill_slopes(matches: Matches, first: int, last: int, out: Floats) -> None:
    """Set ``out`` ``[D]`` to the derivative of AP by the weight of each detection, where each weighs one half.

    AP is here the mean over objects of the best precision from a hit on: a hit adds its own, and like every detection
    it moves the precision at each later place that is the best of some hits. (COCO reads that curve at 101 levels
    instead of at every hit.)
    """
    out[:] = 0.0
    num_categories = np.count_nonzero(np.diff(matches.gt_start))
    for k in range(len(matches.start) - 1):
        num, start = matches.start[k + 1] - matches.start[k], matches.start[k]
        # Hits and detections up to each place, and half the hits whose best precision stands there.
        hits, seen, led = np.empty(num), np.empty(num), np.empty(num)
        num_objects = matches.gt_count[matches.gt_start[k] : matches.gt_start[k + 1]].sum()
        for t in range(first, last if num_objects else first):
            num_hits, num_seen = 0.0, 0.0
            for n in range(num):
                num_hits += 0.5 * ((matches.hit[start + n] >> t) & 1)
                num_seen += 0.5 * (1 - ((matches.ignored[start + n] >> t) & 1))
                hits[n], seen[n], led[n] = num_hits, max(num_seen, 0.5), 0.0
            place, best = num - 1, -1.0
            for n in range(num - 1, -1, -1):
                if (matches.hit[start + n] >> t) & 1:
                    place, best = (n, hits[n] / seen[n]) if hits[n] / seen[n] > best else (place, best)
                    led[place] += 0.5
            _add_slopes(matches, start, t, hits, seen, led, 1.0 / (num_objects * num_categories * (last - first)), out)


@compiled
def _add_slopes(
    matches: Matches, start: int, t: int, hits: Floats, seen: Floats, led: Floats, scale: float, out: Floats
) -> None:  # fmt: skip
    of_hit, of_any, best = 0.0, 0.0, 0.0
    for n in range(len(hits) - 1, -1, -1):
        of_hit += led[n] / seen[n]
        of_any += led[n] * hits[n] / seen[n] ** 2
        if (matches.hit[start + n] >> t) & 1:
            best = max(best, hits[n] / seen[n])
            out[start + n] += scale * (of_hit + best)
        if not (matches.ignored[start + n] >> t) & 1:
            out[start + n] -= scale * of_any
