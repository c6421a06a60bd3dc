"""Statistics: is B better than A, or is it noise? Intervals, tests, convergence and power for detection AP."""

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
