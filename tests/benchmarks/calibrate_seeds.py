"""How often luck of seeds is called a difference, and whether what is stated as detectable is found.

    python tests/benchmarks/calibrate_seeds.py                  # the tables of docs/STATISTICS.md; 10 minutes
    python tests/benchmarks/calibrate_seeds.py --exponents      # how EXPONENTS of intervals.py were chosen; 10 minutes
    python tests/benchmarks/calibrate_seeds.py --experiments 500

An experiment is Gaussian: images move a difference by a variance of 1, each seed's own detections on them by
``interaction``, and a seed's luck by ``1 / ratio``. What is judged are the draws of ``total``, as in a comparison; the
swaps, which see images alone, are taken for their limit, a normal test.
"""

import argparse
import math
from statistics import fmean

import numpy as np

from coordexp.statistics import detectable
from coordexp.statistics.intervals import student_quantile
from coordexp.statistics.seeds import Part, Total, total

RATIOS = (math.inf, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.001)
"""Variance between images by that between seeds; infinite where seeds do not matter."""
INTERACTIONS = (0.0, 0.3, 3.0)
"""Variance by each seed's own detections, by that between images."""
SEEDS = (2, 3, 4, 5)
EXPONENTS = (2.0, 1.5, 1.0, 0.75, 0.5, 0.35)
RESAMPLES = 500
NORMAL_975 = student_quantile(0.975, math.inf)


def experiment(
    rng: np.random.Generator, num_seeds: int, ratio: float, interaction: float, *, shift: float = 0.0
) -> tuple[Total, bool]:
    """Draw an experiment; return what the bootstrap has, and whether the swaps find a difference."""
    own, luck = math.sqrt(interaction), math.sqrt(1 / ratio)
    values = shift + rng.normal(0, 1) + rng.normal(0, math.hypot(own, luck), num_seeds)
    draws = values + rng.normal(0, 1, (RESAMPLES, 1)) + own * rng.normal(0, 1, (RESAMPLES, num_seeds))
    found = total([Part(values=values, draws=draws)], seed=int(rng.integers(2**31)))
    return found, abs(found.value) > NORMAL_975 * math.sqrt(1 + interaction / num_seeds)


def is_called(found: Total, swapped: bool, *, stretch: float | None = None) -> bool:
    """Return whether a difference is called; also as if the draws had been stretched by another factor."""
    ends, scale = found.estimate, 1.0 if stretch is None else stretch / found.stretch
    assert ends.low is not None
    assert ends.high is not None
    low, high = (found.value + scale * (end - found.value) for end in (ends.low, ends.high))
    return swapped and not low <= 0 <= high


def stretch_by(found: Total, num_seeds: int, exponent: float) -> float:
    """Return the factor with another exponent of the share of the seeds, as in ``degrees_of_freedom``."""
    assert found.seed_std is not None
    images, seeds = found.image_std**2, found.seed_std**2
    beyond = max(seeds - (found.interaction_std**2 if num_seeds > 2 else 0.0), 0.0)
    shares = (seeds / (images + seeds)) ** 2, (beyond / (images + beyond)) ** exponent
    return student_quantile(0.975, (num_seeds - 1) / max(*shares, 1e-9)) / NORMAL_975


def _generator(*cell: float) -> np.random.Generator:
    """Return a generator of its own for each cell."""
    return np.random.default_rng([int(1e4 * min(value, 1e3)) for value in cell])


def called(num: int, num_seeds: int, ratio: float, interaction: float) -> str:
    """Return how often chance is called a difference."""
    rng = _generator(1, num_seeds, ratio, interaction)
    return f"{fmean(is_called(*experiment(rng, num_seeds, ratio, interaction)) for _ in range(num)):.1%}"


def called_by_exponent(num: int, num_seeds: int, ratio: float, interaction: float) -> str:
    """Return the same by exponent."""
    rng, counts = _generator(2, num_seeds, ratio, interaction), np.zeros(len(EXPONENTS))
    for _ in range(num):
        found, swapped = experiment(rng, num_seeds, ratio, interaction)
        counts += [is_called(found, swapped, stretch=stretch_by(found, num_seeds, e)) for e in EXPONENTS]
    return " ".join(f"{count / num:.1%}" for count in counts)


def found_of_stated(num: int, num_seeds: int, ratio: float, interaction: float) -> str:
    """Return how often what is stated on average is found where it is planted, and how many standard errors that is."""
    num //= 4
    rng = _generator(3, num_seeds, ratio, interaction)
    without = [experiment(rng, num_seeds, ratio, interaction)[0] for _ in range(num)]
    stated = fmean(
        detectable(one.image_std, one.seed_std, num_seeds, interaction_std=one.interaction_std) for one in without
    )
    found = fmean(is_called(*experiment(rng, num_seeds, ratio, interaction, shift=stated)) for _ in range(num))
    return f"{found:.0%} ({stated / math.sqrt(1 + (interaction + 1 / ratio) / num_seeds):.1f})"


TABLES = {
    "No effect, called a difference": called,
    "The stated minimum planted, found (in standard errors)": found_of_stated,
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=4000)
    parser.add_argument("--exponents", action="store_true")
    options = parser.parse_args()
    tables = {f"By exponent {EXPONENTS}": called_by_exponent} if options.exponents else TABLES
    for title, cell in tables.items():
        print(f"\n{title}\n\n| seeds | own detections | {' | '.join(f'{ratio:g}' for ratio in RATIOS)} |")
        print("|---|---|" + "---|" * len(RATIOS))
        for num_seeds in SEEDS:
            for interaction in INTERACTIONS:
                cells = [cell(options.experiments, num_seeds, ratio, interaction) for ratio in RATIOS]
                print(f"| {num_seeds} | {interaction:g} | {' | '.join(cells)} |".replace("%", " %"), flush=True)


if __name__ == "__main__":
    main()
