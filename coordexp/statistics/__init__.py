"""Statistics: is B better than A, or is it noise? Intervals, tests, convergence and power for detection AP.

In the order in which groups are compared:

- ``resampling``: the draws of images and swaps; ``bootstrap``: AP of every file on them;
- ``intervals``: the one rule for intervals and their p-values; ``permutation``: the swap test, and Holm's correction;
- ``power``: how small a difference can be found;
- ``comparison``: all of this for the groups of an experiment; ``results``: what it returns;
- ``verdict``: the sentence on it; ``readings``: under which ways of reading boxes the sentence holds;
- ``convergence``, ``decomposition``, ``slices``, ``protocols``, ``leads``: the same question for curves, errors, parts
  of the images, published protocols, and amounts of training images.
"""

from coordexp.statistics.bootstrap import paired_bootstrap
from coordexp.statistics.comparison import compare, compare_readings
from coordexp.statistics.power import detectable
from coordexp.statistics.readings import reading_sentence
from coordexp.statistics.results import BootstrapReport, Comparison, Estimate, PairResult, from_json, to_json
from coordexp.statistics.verdict import verdict

__all__ = [
    "BootstrapReport",
    "Comparison",
    "Estimate",
    "PairResult",
    "compare",
    "compare_readings",
    "detectable",
    "from_json",
    "paired_bootstrap",
    "reading_sentence",
    "to_json",
    "verdict",
]
