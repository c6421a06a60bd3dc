"""The compiled loops of average precision under integer image weights.

**Match once, then reweigh.** A bootstrap draws images with replacement, so image ``i`` is in a resample ``w_i`` times.
Detections are matched within an image, and every copy of an image matches as the image does. So detections are matched
and sorted by score once, and AP on any resample is counted from that one ranking, in which each detection and each
object stands for ``w_i`` of them:

    precision at a hit = (hits so far) / (detections so far)        both as sums of weights
    recall at a hit    = (hits so far) / (objects)

COCO's precision at a recall level is the best precision at that recall or above, and AP is its mean over 101 levels.
The value is that of COCOeval on a file in which each copy stands next to its original; a test really repeats the
images.

One category at one threshold, hits as ``H`` and misses as ``.``, and how :func:`_add_precisions` walks it:

    ranking            H    .    H    H    .    .    H       best score first, four objects
    precision          1         2/3  3/4            4/7     only a hit can raise it
    best from here on  1         3/4  3/4            4/7     the largest precision at this hit or a later one
    its recall levels  0-.25     -.50 -.75           -1.00   those that this hit reaches and the one before does not
                       <------------------------------------ walked from the last hit to the first

- Precision only falls at a miss, so only hits are walked; of the detections between them their number is enough.
  A detection that is ignored (on a crowd, outside the area range) counts neither as a hit nor as a detection.
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
_RESAMPLES_A_WALK = 32
_EPS = float(np.spacing(1))
"""pycocotools adds it to the number of detections before it divides."""


@compiled
def _num_levels(recall: float) -> float:
    """Return how many recall levels a recall reaches, as a float that precisions are multiplied with; 0 without a hit.

    Level ``i`` is the float ``0.01 * i``. The two corrections make up for the rounding of ``100 * recall``.
    """
    level = math.floor(100.0 * recall)
    level += 1.0 if 0.01 * (level + 1.0) <= recall else 0.0
    level -= 1.0 if 0.01 * level > recall else 0.0
    return level + 1.0 if recall > 0.0 else 0.0


@compiled
def _counted(matches: Matches, category: int, weights_NR: Weights) -> tuple[Index, Index]:
    """Return how many objects a category has, and how many of its detections stand at or before each place.

    Returns:
        ``[R]`` objects, and ``[D, R]`` detections of the category up to each, best score first.
    """
    num_resamples = weights_NR.shape[1]
    num_objects = np.zeros(num_resamples, np.int32)
    for row in range(matches.gt_start[category], matches.gt_start[category + 1]):
        image = matches.gt_image[row]
        count = matches.gt_count[row]
        for r in range(num_resamples):
            num_objects[r] += count * weights_NR[image, r]

    start = matches.start[category]
    num_seen = np.zeros(num_resamples, np.int32)
    seen = np.empty((matches.start[category + 1] - start, num_resamples), np.int32)
    for place in range(len(seen)):
        image = matches.image[start + place]
        for r in range(num_resamples):
            num_seen[r] += weights_NR[image, r]
            seen[place, r] = num_seen[r]
    return num_objects, seen


@compiled
def fill_curves(matches: Matches, weights: Weights, precision: Floats, recall: Floats) -> None:
    """Set precision and recall as COCOeval accumulates them, -1 for a category without ground truth.

    Args:
        matches: of all images.
        weights: ``[N]`` how many copies of each image there are.
        precision: ``[T, L, K]``, written: the best precision at each recall level or above.
        recall: ``[T, K]``, written: the recall that all detections reach.
    """
    precision[:] = -1.0
    recall[:] = -1.0
    for k in range(recall.shape[1]):
        counted, seen = _counted(matches, k, weights.reshape((-1, 1)))
        num_objects = counted[0]
        if not num_objects:
            continue
        start = matches.start[k]
        num_detections = seen[-1, 0] if len(seen) else 0
        at_hit = np.empty(1 + num_detections)  # at_hit[n]: the precision at the nth hit

        for t in range(len(recall)):
            num_hits = 0
            num_ignored = 0
            for event in range(matches.event_start[t, k], matches.event_start[t, k + 1]):
                first = matches.event[event]
                length = matches.run[first]
                copies = int(weights[matches.image[first]])
                for entry in range(copies * length):
                    d = first + entry % length
                    if (matches.ignored[d] >> t) & 1:
                        num_ignored += 1
                    elif (matches.hit[d] >> t) & 1:
                        num_hits += 1
                        rank = seen[first - start, 0] - copies + entry + 1
                        at_hit[num_hits] = num_hits / (rank - num_ignored + _EPS)

            recall[t, k] = num_hits / num_objects
            precision[t, :, k] = 0.0
            best = 0.0
            for hit in range(num_hits, 0, -1):
                best = max(best, at_hit[hit])
                lower = _num_levels((hit - 1) / num_objects)
                upper = _num_levels(hit / num_objects)
                precision[t, int(lower) : int(upper), k] = best


@compiled
def _totals(matches: Matches, category: int, t: int, weights_NR: Weights) -> tuple[Index, Index]:
    """Return the hits and the ignored detections of a category at threshold ``t``, ``[R]`` each."""
    num_hits = np.zeros(weights_NR.shape[1], np.int32)
    num_ignored = np.zeros(weights_NR.shape[1], np.int32)
    for event in range(matches.event_start[t, category], matches.event_start[t, category + 1]):
        first = matches.event[event]
        for d in range(first, first + matches.run[first]):
            image = matches.image[d]
            if (matches.ignored[d] >> t) & 1:
                for r in range(len(num_hits)):
                    num_ignored[r] += weights_NR[image, r]
            elif (matches.hit[d] >> t) & 1:
                for r in range(len(num_hits)):
                    num_hits[r] += weights_NR[image, r]
    return num_hits, num_ignored


@compiled
def _set_entry(entry: int, length: int, image_copies: Weights, seen: Index, entry_copies: Index, rank: Index) -> None:
    """Set whether a resample has an entry of a run's copies, and the entry's rank among all detections.

    Args:
        entry: counted through the copies of the run, ``d1 d2 d1 d2``.
        length: how many detections the run has.
        image_copies: ``[R]`` copies of the image.
        seen: ``[R]`` detections up to and with all copies of the run's first.
        entry_copies: ``[R]``, written: 1 if the resample has the entry, otherwise 0.
        rank: ``[R]``, written.
    """
    for r in range(len(image_copies)):
        entry_copies[r] = 1 if entry // length < image_copies[r] else 0
        rank[r] = seen[r] - image_copies[r] + entry + 1


@compiled
def _add_precisions(
    matches: Matches, category: int, t: int, weights_NR: Weights, num_objects: Index, seen: Index, total: Floats
) -> None:
    """Add to ``total`` the best precision at each recall level of a category at threshold ``t``.

    The walk goes from the last detection to the first: so the best precision met so far is the best at this recall or
    above. A hit of which a resample has no copy changes nothing there: its precision is below that of the hit before.

    Args:
        matches: of all images.
        category: its index.
        t: index of the threshold.
        weights_NR: ``[N, R]`` copies of each image.
        num_objects: ``[R]`` of the category.
        seen: ``[D, R]`` detections of the category up to each.
        total: ``[R]``, added to.
    """
    num_hits, num_ignored = _totals(matches, category, t, weights_NR)
    best = np.zeros(len(total))
    upper = np.empty(len(total))  # the recall levels that the hits up to here reach
    for r in range(len(total)):
        upper[r] = _num_levels(num_hits[r] / num_objects[r])

    copies = np.empty(len(total), np.int32)
    rank = np.empty(len(total), np.int32)
    start = matches.start[category]
    for event in range(matches.event_start[t, category + 1] - 1, matches.event_start[t, category] - 1, -1):
        first = matches.event[event]
        length = int(matches.run[first])
        image = matches.image[first]
        place = first - start
        # All copies of a single detection are one entry: the last of them has their highest precision. A run of
        # several is walked copy by copy.
        num_entries = length * (weights_NR[image].max() if length > 1 else 1)
        for entry in range(num_entries - 1, -1, -1):
            d = first + entry % length
            if length > 1:
                _set_entry(entry, length, weights_NR[image], seen[place], copies, rank)
            else:
                for r in range(len(total)):
                    copies[r] = weights_NR[image, r]
                    rank[r] = seen[place, r]

            if (matches.ignored[d] >> t) & 1:
                for r in range(len(total)):
                    num_ignored[r] -= copies[r]
            elif (matches.hit[d] >> t) & 1:
                for r in range(len(total)):
                    best[r] = max(best[r], num_hits[r] / (rank[r] - num_ignored[r] + _EPS))
                    num_hits[r] -= copies[r]
                    lower = _num_levels(num_hits[r] / num_objects[r])
                    total[r] += best[r] * (upper[r] - lower)
                    upper[r] = lower


@compiled
def fill_average_precisions(matches: Matches, first: int, weights_RN: Weights, out: Floats) -> None:
    """Set ``out`` to average precisions, NaN for a category without ground truth.

    Args:
        matches: of all images.
        first: index of the lowest threshold; ``out`` says how many follow.
        weights_RN: ``[R, N]`` copies of each image.
        out: ``[R, T, K]``, written.
    """
    out[:] = np.nan
    for begin in range(0, len(out), _RESAMPLES_A_WALK):
        weights_NR = weights_RN[begin : begin + _RESAMPLES_A_WALK].T.copy()
        for k in range(out.shape[2]):
            num_objects, seen = _counted(matches, k, weights_NR)
            for t in range(out.shape[1]):
                total = np.zeros(len(num_objects))
                _add_precisions(matches, k, first + t, weights_NR, num_objects, seen, total)
                for r in range(len(num_objects)):
                    if num_objects[r]:
                        out[begin + r, t, k] = total[r] / NUM_LEVELS


@compiled
def fill_slopes(matches: Matches, first: int, last: int, out: Floats) -> None:
    """Set ``out`` to the derivative of AP by the weight of each detection, where each weighs one half.

    Here AP is the mean over objects of the best precision at a hit or after it; COCO reads the same curve at 101
    levels instead of at every hit. A hit adds its own precision. Like every detection, a hit also moves the precision
    at each later place that is the best for some hits: such a place *leads* those hits.

    Args:
        matches: of all images.
        first: index of the lowest threshold.
        last: index behind the highest threshold.
        out: ``[D]``, written.
    """
    out[:] = 0.0
    num_categories = np.count_nonzero(np.diff(matches.gt_start))
    for k in range(len(matches.start) - 1):
        start = matches.start[k]
        num_detections = matches.start[k + 1] - start
        num_objects = matches.gt_count[matches.gt_start[k] : matches.gt_start[k + 1]].sum()
        if not num_objects:
            continue
        # Up to each place, halved: hits, detections; and of each place the hits that it leads.
        hits = np.empty(num_detections)
        seen = np.empty(num_detections)
        led = np.empty(num_detections)
        scale = 1.0 / (num_objects * num_categories * (last - first))

        for t in range(first, last):
            num_hits = 0.0
            num_seen = 0.0
            for n in range(num_detections):
                num_hits += 0.5 * ((matches.hit[start + n] >> t) & 1)
                num_seen += 0.5 * (1 - ((matches.ignored[start + n] >> t) & 1))
                hits[n] = num_hits
                seen[n] = max(num_seen, 0.5)
                led[n] = 0.0

            leader = num_detections - 1
            best = -1.0
            for n in range(num_detections - 1, -1, -1):
                if (matches.hit[start + n] >> t) & 1:
                    precision = hits[n] / seen[n]
                    if precision > best:
                        leader = n
                        best = precision
                    led[leader] += 0.5
            _add_slopes(matches, start, t, hits, seen, led, scale, out)


@compiled
def _add_slopes(
    matches: Matches, start: int, t: int, hits: Floats, seen: Floats, led: Floats, scale: float, out: Floats
) -> None:
    """Add the slopes of one category at threshold ``t`` to ``out``, from the last detection to the first.

    With ``p = hits / seen`` at a place that leads ``led`` hits, one more hit before it adds ``led / seen`` and one more
    detection takes ``led * hits / seen ** 2``.

    Args:
        matches: of all images.
        start: row of the category's first detection.
        t: index of the threshold.
        hits: ``[D]`` half the hits of the category up to each place.
        seen: ``[D]`` half its detections up to each place.
        led: ``[D]`` half the hits whose best precision stands at the place.
        scale: what a precision counts in AP.
        out: rows of all categories, added to.
    """
    gain_of_hit = 0.0
    cost_of_detection = 0.0
    best = 0.0
    for n in range(len(hits) - 1, -1, -1):
        gain_of_hit += led[n] / seen[n]
        cost_of_detection += led[n] * hits[n] / seen[n] ** 2
        if (matches.hit[start + n] >> t) & 1:
            best = max(best, hits[n] / seen[n])
            out[start + n] += scale * (gain_of_hit + best)
        if not (matches.ignored[start + n] >> t) & 1:
            out[start + n] -= scale * cost_of_detection
