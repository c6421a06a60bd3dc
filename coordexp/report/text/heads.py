"""What the heads of tables mean, shown where one points at them."""

from collections.abc import Mapping

from coordexp.detection.metrics import detection_metrics
from coordexp.metrics import AP_METRICS, GENERATION_METRICS

_MEANINGS: Mapping[str, str] = {
    "read by": "which number of a coordinate's distribution is taken for the box: the most likely bin, or the mean",
    "boxes": "which number of a coordinate's distribution is taken for the box: the most likely bin, or the mean",
    "seeds": "the runs behind the row; numbers are their means",
    "95 % interval": "95 % confidence interval: 2,000 draws of images, and of seeds where there are several",
    "pair": "the first group minus the second; the better one stands first",
    "difference": "of the first group minus the second, on the same images",
    "p, swaps": "how often chance gives as large a difference if each image's detections are swapped by a coin",
    "p, bootstrap": "how often chance gives as large a difference, from the same draws as the interval",
    "p, corrected": "the larger of the two p-values, corrected for all pairs (Holm): below .05 a difference is told",
    "detectable": "the smallest true difference that would have been found four times in five",
    "std. error, images": "the part of the difference's standard error that comes from which images there are",
    "std. error, seeds": "the part of the difference's standard error that comes from which seeds there are",
    "mean AP": "mean height of the curve of AP over steps, on the subset of images evaluated in training",
    "own reading": "each group read as its loss suggests",
    "all by expectation": "every group read by the mean of each coordinate's distribution",
    "all by argmax": "every group read by the most likely bin of each coordinate",
    "own reading, free decoding": "each group's own reading of what it writes without the grammar",
    "repeated boxes": "boxes that repeat a better one of the same image and category",
    "share of steps clipped": "steps whose gradient was longer than the limit and was scaled down to it",
    "mean norm": "mean length of the gradient before it is scaled down",
}


def meaning(head: str) -> str:
    """Return what a head means in a sentence; "" where it says so itself."""
    if head in _MEANINGS:
        return _MEANINGS[head]
    metrics = [*AP_METRICS, *GENERATION_METRICS, *(metric.declared for metric in detection_metrics())]
    return next((metric.description for metric in metrics if metric.column == head), "")
