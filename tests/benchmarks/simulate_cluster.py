"""A cluster of 64 GPUs that are only numbers, and an ablation of sleeping runs: how busy does scheduling keep it?

    python tests/benchmarks/simulate_cluster.py

Everything but the training is real: plan, Tune, Train, placement groups, one worker process a run. On a machine with
few cores the start of those processes is the bottleneck, which a real cluster with many nodes does not share: so the
length of a run is an option (real runs take hours), and the seconds lost between runs are printed beside the share.
Runs differ in length, as real ones do: all ending at once would start all of the next at once.
"""

import argparse
import atexit
import heapq
import itertools
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from rich.console import Console

CONSOLE = Console(highlight=False, soft_wrap=True)


def sleeper(seconds: float, *, spread: float):
    """Return a stand-in for the trainer core that holds its GPUs for a while and writes when."""

    def sleep(config, *, reporter, print_line):
        run_dir = Path(config.experiment.runs_dir) / config.experiment.name
        name = f"{config.experiment.group}-s{config.experiment.seed}"
        began = time.time()
        time.sleep(seconds * random.Random(name).uniform(1 - spread, 1 + spread))
        (run_dir / name / "times.json").write_text(json.dumps([began, time.time()]))

    return sleep


class EventLog:
    """When the launcher learned that a run had ended: only then may it start another."""

    def __init__(self) -> None:
        """Start without events."""
        self.ends: dict[str, float] = {}

    def on_begin(self, plan) -> None:
        """Nothing to note."""

    def on_end(self, plan) -> None:
        """Note the moment."""
        self.ends[plan.name] = time.time()


def makespan(lengths: Sequence[float], slots: int) -> float:
    """Return the seconds from the first begin to the last end if each run began the moment a slot is free."""
    free_at = [0.0] * slots
    for length in lengths:
        heapq.heapreplace(free_at, free_at[0] + length)
    return max(free_at)


def busy_seconds(spans: Sequence[tuple[float, float]], *, begin: float, end: float) -> float:
    """Return the seconds that runs hold between two moments, added up."""
    return sum(max(0.0, min(stop, end) - max(start, begin)) for start, stop in spans)


def waits_between(spans: Collection[tuple[float, float]], slots: int) -> list[float]:
    """Return the seconds from the end of a run to the begin of the next in its slot, in the order of the begins."""
    begins, ends = sorted(begin for begin, _ in spans), sorted(end for _, end in spans)
    return [begins[number] - ends[number - slots] for number in range(slots, len(begins))]


def main() -> int:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--gpus-per-run", type=float, default=16.0)
    parser.add_argument("--groups", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=120.0, help="mean length of a run")
    parser.add_argument("--spread", type=float, default=0.5, help="of the lengths, as a share of the mean")
    options = parser.parse_args()
    temporary = tempfile.mkdtemp(prefix="cx-sim-", dir="/tmp")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)  # after Ray's own end, which is registered later
    spans, slots, planned = simulate(options, Path(temporary))
    report(options, spans, slots, planned)
    return 0


def start_ray(num_gpus: int, temporary: Path) -> None:
    """Start Ray as a private session does, with more CPUs and GPUs than there are."""
    from coordexp.cluster import session

    os.environ.update(session.LAUNCHER_ENV)
    os.environ.pop("RAY_ADDRESS", None)
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    ray.init(
        address="local",
        num_cpus=4 * num_gpus,
        num_gpus=num_gpus,
        include_dashboard=True,
        dashboard_host="127.0.0.1",
        object_store_memory=128 * 2**20,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": session.PROCESS_ENV | session.PRIVATE_SESSION_ENV | {"OMP_NUM_THREADS": "1"}},
        _temp_dir=str(temporary / "ray"),
    )
    atexit.register(ray.shutdown)


def simulate(options: argparse.Namespace, temporary: Path) -> tuple[dict[str, tuple[float, float]], int, list[str]]:
    """Run the plan; return when each run held its GPUs, how many fit at once, and the planned order."""
    from coordexp.config.schema import ExperimentConfig
    from coordexp.runs.plan import plan_runs

    config = ExperimentConfig.model_validate(
        {
            "experiment": {"name": "simulated", "runs_dir": str(temporary / "runs")},
            "cluster": {"gpus_per_worker": options.gpus_per_run},
            "ablation": {
                "groups": {f"G{number}": {} for number in range(options.groups)},
                "seeds": list(range(options.seeds)),
            },
        }
    )
    plans = plan_runs(config)
    start_ray(options.gpus, temporary)
    from coordexp.cluster import executor

    slots = executor.available_slots(config.cluster)
    log = EventLog()
    executor.RayExecutor().execute(plans, sleeper(options.seconds, spread=options.spread), log)
    spans = {plan.name: tuple(json.loads((plan.run_dir / "times.json").read_text())) for plan in plans}
    delays = [log.ends[name] - end for name, (_, end) in spans.items()]
    CONSOLE.print(f"from the end of a run until the launcher hears of it: {sum(delays) / len(delays):.2f} s on average")
    return spans, slots, [plan.name for plan in plans]


def report(
    options: argparse.Namespace, spans: dict[str, tuple[float, float]], slots: int, planned: Sequence[str]
) -> None:
    """Print the busy shares and what is lost between runs."""
    begins, ends = sorted(begin for begin, _ in spans.values()), sorted(end for _, end in spans.values())
    usable = slots * options.gpus_per_run

    def share(begin: float, end: float, gpus: float) -> float:
        busy = busy_seconds(list(spans.values()), begin=begin, end=end)
        return busy * options.gpus_per_run / ((end - begin) * gpus)

    waits = waits_between(spans.values(), slots)
    order = [name for name, _ in sorted(spans.items(), key=lambda item: item[1][0])]
    late = sum(int(name[-1]) < int(before[-1]) for before, name in itertools.pairwise(order))
    CONSOLE.print(
        f"{len(spans)} runs of {options.seconds:g} s (+- {options.spread:.0%}), each on {options.gpus_per_run:g} of "
        f"{options.gpus} GPUs: "
        f"{slots} fit at once ({usable:g} GPUs, {usable / options.gpus:.1%})"
    )
    CONSOLE.print(f"from the end of a run to the begin of the next: {sum(waits) / max(1, len(waits)):.2f} s on average")
    CONSOLE.print(f"while runs wait: {share(begins[slots - 1], begins[-1], usable):.1%} of the usable GPUs busy")
    CONSOLE.print(
        f"over the whole plan: {share(begins[0], ends[-1], usable):.1%} of the usable, "
        f"{share(begins[0], ends[-1], options.gpus):.1%} of all GPUs busy"
    )
    lengths = [spans[name][1] - spans[name][0] for name in planned]
    best = sum(lengths) / (slots * makespan(lengths, slots)) * usable / options.gpus
    CONSOLE.print(f"  ({best:.1%} if nothing were lost between runs: at the end some have no successor)")
    CONSOLE.print(f"runs begun after one of a later seed: {late} (planned: whole seeds first, {planned[0]} ...)")


if __name__ == "__main__":
    sys.exit(main())
