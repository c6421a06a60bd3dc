"""How small a difference of AP a design can find: 80 % power in a two-sided test at the 5 % level."""

import math

from coordexp.errors import ComparisonError
from coordexp.statistics.intervals import student_quantile

POWER = 0.80
ALPHA = 0.05

AGREEMENT = 1.05
"""Both tests have to find a difference, and their stds are estimates: measured, 80 % power takes this much more."""

PLANNED_IMAGE_STD = 0.2
"""Planning: std of a paired difference of AP by the choice of images, times the root of their number."""

PLANNED_SEED_STD = 0.006
"""Planning: std between seeds of the AP difference of two groups trained with the same seed."""


def detectable(image_std: float, seed_std: float | None, num_seeds: int) -> float:
    """Return the smallest true difference that a comparison with these parts of variance finds.

    ``1.05 (t_.975 + t_.80) * sqrt(image_std^2 + seed_std^2)``: :data:`AGREEMENT`; Student's t
    has Satterthwaite's degrees of freedom: the image part is well known,
    the seed part only as well as ``num_seeds`` allow.

    Args:
        image_std: std of the (mean) difference by the choice of images.
        seed_std: std of the mean difference by the choice of seeds; None with one seed, and
            the answer is then about these checkpoints.
        num_seeds: number of seeds.

    Raises:
        ComparisonError: if a number is out of range, or ``seed_std`` is given for one seed.
    """
    if not (math.isfinite(image_std) and image_std >= 0) or num_seeds < 1:
        raise ComparisonError(
            f"power needs image_std >= 0 and at least one seed, got image_std {image_std} and {num_seeds} seeds"
        )
    if seed_std is None:
        return _factor(math.inf) * image_std
    if num_seeds < 2 or not (math.isfinite(seed_std) and seed_std >= 0):
        raise ComparisonError(f"seed_std needs two seeds or more and a value >= 0, got {seed_std} of {num_seeds} seeds")
    freedom = degrees_of_freedom(image_std**2, [(seed_std**2, num_seeds)])
    return _factor(freedom) * math.hypot(image_std, seed_std)


def planned_detectable(num_images: int, num_seeds: int) -> float:
    """Return roughly the smallest AP difference a plan can find, before there are data.

    Assumes that groups differ on images as those measured in ``docs/STATISTICS.md`` do
    (:data:`PLANNED_IMAGE_STD` over the root of the number of images) and that seeds move a paired
    difference by :data:`PLANNED_SEED_STD`. Both vary by a factor of two between experiments: say
    "roughly". With one seed it is about checkpoints.

    Args:
        num_images: images of the evaluation split.
        num_seeds: seeds of each group.

    Raises:
        ComparisonError: if either is below 1.
    """
    if num_images < 1:
        raise ComparisonError(f"a plan needs at least one image, got {num_images}")
    seed_std = PLANNED_SEED_STD / math.sqrt(num_seeds) if num_seeds > 1 else None
    return detectable(PLANNED_IMAGE_STD / math.sqrt(num_images), seed_std, num_seeds)


def degrees_of_freedom(image_variance: float, seed_parts: list[tuple[float, int]]) -> float:
    """Return Satterthwaite's degrees of freedom of a sum of variances, the first known, the others of few seeds.

    Args:
        image_variance: taken as known.
        seed_parts: variance of a mean over seeds, and their number, at least 2.
    """
    uncertainty = sum(variance**2 / (num - 1) for variance, num in seed_parts)
    total = image_variance + sum(variance for variance, _ in seed_parts)
    return total**2 / uncertainty if uncertainty > 0 else math.inf


def _factor(freedom: float) -> float:
    return AGREEMENT * (student_quantile(1 - ALPHA / 2, freedom) + student_quantile(POWER, freedom))
