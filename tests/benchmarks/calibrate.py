"""How often intervals cover and what is stated as detectable is found: the tables of docs/STATISTICS.md.

    python tests/benchmarks/calibrate.py seeds      # Gaussian experiments by seeds: what f is good for; a minute
    python tests/benchmarks/calibrate.py power      # the stated minimum planted in them; a minute
    python tests/benchmarks/calibrate.py images     # made-up detections by images and categories; five minutes
    python tests/benchmarks/calibrate.py units      # frames of clips, drawn as units and as images; ten minutes

In a Gaussian experiment, images move a difference by a variance of 1, each seed's own detections on them by
``own``, and a seed's luck by ``1 / ratio``; the swaps, which see images alone, are taken for a normal test.
In the made-up detections (``tests/support/detection_simulator.py``) two groups do not differ; the true AP is the
mean over experiments of as many images. Where images are frames of clips, what a method does wrong is drawn once a
clip.
"""

import argparse
import math
import sys
import tempfile
from pathlib import Path
from statistics import fmean

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from coordexp.data.units import UnitRule, read_unit_names
from coordexp.statistics import Estimate, compare, detectable
from coordexp.statistics.bootstrap import images_a_category, read_matches, resampled
from coordexp.statistics.intervals import NORMAL_975, Total, degrees_of_freedom, difference_total, group_total
from tests.support.detection_simulator import write_experiment, write_unit_experiment

RATIOS = (math.inf, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.001)
"""Variance between images by that between seeds; infinite where seeds do not matter."""
OWN = (0.0, 0.3, 3.0)
"""Variance by each seed's own detections, by that between images."""
SEEDS = (2, 3, 4, 5)
CELLS = (
    (200, 3, 1, 200), (200, 3, 3, 200), (100, 80, 1, 200), (200, 80, 1, 200), (200, 80, 3, 100), (1000, 80, 1, 80),
    (1000, 80, 3, 40),
)  # fmt: skip
"""Images, categories, seeds and experiments."""
RESAMPLES = 200
UNITS = {"44 units of 15": (44, 15, 15), "20 units of 1 to 60": (20, 1, 60)}
"""Number of units, and the fewest and most images of one."""


def gaussian(num: int, num_seeds: int, ratio: float, own: float) -> tuple[np.ndarray, list[Total]]:
    """Return ``num`` experiments without an effect: values, and what is known of each, images being known exactly."""
    rng = np.random.default_rng([num_seeds, *(int(1e4 * min(value, 1e3)) for value in (ratio, own))])
    values = rng.normal(0, 1, (num, 1)) + rng.normal(0, math.sqrt(own + 1 / ratio), (num, num_seeds))
    means, seeds = values.mean(axis=1), values.var(axis=1, ddof=1) / num_seeds
    return means, [
        Total(mean, 1.0, math.sqrt(seed), degrees_of_freedom(1.0, [seed], [num_seeds]))
        for mean, seed in zip(means.tolist(), seeds.tolist(), strict=True)
    ]


def covered(num: int, num_seeds: int, ratio: float, own: float) -> str:
    """Return the coverage, and the mean width by that of an interval that knows all variances."""
    means, totals = gaussian(num, num_seeds, ratio, own)
    reach = np.array([total.factor * total.std for total in totals])
    ideal = NORMAL_975 * math.sqrt(1 + (own + 1 / ratio) / num_seeds)
    return f"{np.mean(np.abs(means) <= reach):.1%} ({reach.mean() / ideal:.1f})"


def found(num: int, num_seeds: int, ratio: float, own: float) -> str:
    """Return how often what is stated on average is found where it is planted, and how many standard errors that is."""
    means, totals = gaussian(num, num_seeds, ratio, own)
    stated = fmean(detectable(one.image_std, one.seed_std, num_seeds) for one in totals[:50])
    reach = np.array([total.factor * total.std for total in totals])
    swaps = NORMAL_975 * math.sqrt(1 + own / num_seeds)
    share = np.mean(np.abs(means + stated) > np.maximum(reach, swaps))
    return f"{share:.0%} ({stated / math.sqrt(1 + (own + 1 / ratio) / num_seeds):.1f})"


def covers(estimate: Estimate, truth: float) -> bool:
    """Return whether an interval holds the truth."""
    return estimate.low is not None and estimate.high is not None and estimate.low <= truth <= estimate.high


def detections(num: int, images: int, categories: int, seeds: int) -> str:
    """Return a row of the table of made-up detections."""
    values, differences, rarity = list[Estimate](), list[Estimate](), 0.0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(num):
            annotations, files = write_experiment(
                Path(folder),
                number=number,
                num_images=images,
                effects={"A": 0.0, "B": 0.0},
                num_seeds=seeds,
                seed_spread=0.1 if seeds > 1 else 0.0,
                num_categories=categories,
            )
            paths = {(group, seed): path for group, own in files.items() for seed, path in own.items()}
            matches = read_matches(annotations, paths, metric="AP")
            drawn = resampled(matches, "AP", resamples=RESAMPLES, seed=number)
            a, b = ({seed: drawn[group, seed] for seed in files[group]} for group in "AB")
            values += [group_total(a).estimate, group_total(b).estimate]
            differences.append(difference_total(a, b).estimate)
            rarity += images_a_category(matches["A", 0]) / num
    truth = fmean(value.value for value in values)
    by_value, by_difference = (
        fmean(covers(one, true) for one in estimates) for estimates, true in ((values, truth), (differences, 0.0))
    )
    row = f"| {images:,} | {categories} | {rarity:.1f} | {seeds} | {by_value:.1%} | {by_difference:.1%} | {num} |"
    return row.replace("%", " %")


def units(num: int, num_units: int, fewest: int, most: int) -> list[str]:
    """Return two cells: how often units are right, and how often images would be.

    Each is the coverage of the difference, and how often swaps alone and the decision tell two equal methods apart.
    """
    counts = {"units": np.zeros(3), "images": np.zeros(3)}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(num):
            frames = np.random.default_rng([number, 3]).integers(fewest, most + 1, num_units).tolist()
            annotations, files = write_unit_experiment(Path(folder), number=number, num_frames=frames)
            names = read_unit_names(annotations, UnitRule.parse("clip"))
            for drawn, found in (("units", names), ("images", None)):
                (pair,) = compare(annotations, files, resamples=2 * RESAMPLES, seed=number, units=found).pairs
                counts[drawn] += (covers(pair.difference, 0.0), pair.p_swap < 0.05, pair.significant)
    return [
        f"{covered:.1%} | {swaps:.1%} | {decided:.1%}" for covered, swaps, decided in np.stack([*counts.values()]) / num
    ]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("seeds", "power", "images", "units"))
    parser.add_argument("--experiments", type=int, help="of a cell; default: 4000, of detections 40 to 200")
    options = parser.parse_args()
    if options.table == "images":
        print(
            "| images | categories | images a category | seeds | AP | difference | experiments |\n" + "|---" * 7 + "|"
        )
        for images, categories, seeds, num in CELLS:
            print(detections(options.experiments or num, images, categories, seeds), flush=True)
        return
    if options.table == "units":
        heads = ("covered", "swaps alone", "decision")
        print(f"| units | {' | '.join(heads)} | {', by image | '.join(heads)}, by image |\n" + "|---" * 7 + "|")
        for name, sizes in UNITS.items():
            cells = units(options.experiments or 500, *sizes)
            print(f"| {name} | {' | '.join(cells)} |".replace("%", " %"), flush=True)
        return
    cell = covered if options.table == "seeds" else found
    print(f"| seeds | own detections | {' | '.join(f'{ratio:g}' for ratio in RATIOS)} |\n" + "|---" * 10 + "|")
    for num_seeds in SEEDS:
        for own in OWN:
            cells = [cell(options.experiments or 4000, num_seeds, ratio, own) for ratio in RATIOS]
            print(f"| {num_seeds} | {own:g} | {' | '.join(cells)} |".replace("%", " %"), flush=True)


if __name__ == "__main__":
    main()
