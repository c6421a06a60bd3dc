"""How often intervals of AP cover and chance is called a difference, by images, categories and seeds.

    python tests/benchmarks/calibrate_images.py --seeds 1  # the table of docs/STATISTICS.md, an hour; all: three
    python tests/benchmarks/calibrate_images.py --experiments 50 --images 100 --categories 80 --seeds 1

Two groups that do not differ are compared in many made-up experiments (``tests/integration/detection_simulator.py``).
The true AP is the mean over experiments of as many images, the true difference 0.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[2]))

from coordexp.statistics import Comparison, Estimate, compare
from tests.integration.detection_simulator import write_experiment

RESAMPLES = 400


def experiments(num: int, *, images: int, categories: int, seeds: int, luck: float) -> list[Comparison]:
    """Compare two groups without a difference in ``num`` experiments; ``luck`` is how far seeds move their quality."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(num):
            annotations, files = write_experiment(
                Path(folder),
                number=number,
                num_images=images,
                effects={"A": 0.0, "B": 0.0},
                num_seeds=seeds,
                seed_spread=luck,
                num_categories=categories,
            )
            found.append(compare(annotations, files, resamples=RESAMPLES))
    return found


def covers(estimate: Estimate, truth: float) -> bool:
    """Return whether an interval holds the truth."""
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low <= truth <= estimate.high


def row(num: int, *, images: int, categories: int, seeds: int, luck: float) -> str:
    """Return a row of a table in Markdown."""
    found = experiments(num, images=images, categories=categories, seeds=seeds, luck=luck)
    values = [one.value[group] for one in found for group in one.groups]
    truth, pairs = fmean(value.value for value in values), [one.pairs[0] for one in found]
    cells = [
        f"{images:,}",
        str(categories),
        f"{fmean(one.images_a_category or 0.0 for one in found):.1f}",
        f"{seeds}" + (f", luck {luck:g}" if luck else ""),
        f"{fmean(covers(value, truth) for value in values):.1%}",
        f"{fmean(covers(pair.difference, 0.0) for pair in pairs):.1%}",
        f"{fmean(pair.significant for pair in pairs):.1%}",
        str(num),
    ]
    return f"| {' | '.join(cells)} |".replace("%", " %")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=400, help="of a cell; fewer with more than 1,000 images")
    parser.add_argument("--images", type=int, nargs="+", default=[100, 200, 500, 1000, 2000, 5000])
    parser.add_argument("--categories", type=int, nargs="+", default=[3, 20, 80])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 5])
    parser.add_argument("--luck", type=float, default=0.0, help="std of what a seed does to the errors of boxes")
    options = parser.parse_args()
    heads = ("images", "categories", "images a category", "seeds", "AP covered", "difference covered", "called", "of")
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for seeds in options.seeds:
        for categories in options.categories:
            for images in options.images:
                num = max(20, int(options.experiments * min(1.0, 1000 / images) / seeds**0.5))
                print(row(num, images=images, categories=categories, seeds=seeds, luck=options.luck), flush=True)


if __name__ == "__main__":
    main()
