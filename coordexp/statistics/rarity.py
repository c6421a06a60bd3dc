"""Categories that are in few images: what resampled images then show of AP, and what they do not.

AP is a mean over categories. A category that is in one image is in a resample as it is or not at all: resamples say
nothing of how far its AP could be off. And the resamples' mean lies off the value by which categories they happen to
hold, which a correction of bias takes for a bias. So where categories are in few images, the draws are moved onto the
value and spread out. How far is measured: ``tests/benchmarks/calibrate_images.py``, docs/STATISTICS.md.
"""

import numpy as np

from coordexp.detection.boxes import Floats
from coordexp.detection.matches import Matches

FEW_IMAGES = 20.0
"""Images that a category is in, below which draws are moved; with more, they are taken as they are."""

FEWEST_IMAGES = 6
"""Below, no difference can reach p < .05: the swap test has at most 2^5 outcomes, two of which are the furthest out."""

_WIDER_FROM, _WIDER_BY = 0.13, 0.55


def images_a_category(matches: Matches) -> float:
    """Return in how many images a category is: the harmonic mean over the categories that are in any, by any file."""
    images = np.diff(matches.gt_start)
    return float(1 / np.mean(1 / images[images > 0]))


def widening(images: float) -> float:
    """Return the factor by which draws of AP are spread out where a category is in so many images; 1 from 8 on."""
    return 1 + _WIDER_BY * max(1 / images - _WIDER_FROM, 0.0)


def corrected(value: float, draws: Floats, images: float) -> Floats:
    """Return draws of a mean over categories, for an interval of it on other samples of as many images.

    The draws ``[R]`` themselves where categories are in enough images; else with ``value`` as their mean, and wider.
    """
    if images >= FEW_IMAGES or np.isnan(draws).all():
        return draws
    return value + widening(images) * (draws - np.nanmean(draws))
