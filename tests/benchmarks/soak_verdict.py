"""What the samples of a soak say: flat or not, what a run costs early and late, and the figure.

    python tests/benchmarks/soak_verdict.py soak    # again, from the folder that soak.py has written

The first and the last quarter of the samples are compared, from the moment when a tenth of the runs had ended until the
last had. Flat is what grew by no more than ``LIMITS`` says.
"""

import contextlib
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

JUDGED = ("launcher", "MLflow's server")  # the others are not ours
LASTING = (*JUDGED, "PostgreSQL")  # and whatever is Ray's own; a run's processes come and go
LIMITS = {"uss_mib": (16.0, 0.05), "handles": (8.0, 0.0), "threads": (4.0, 0.0)}  # or the share of what there was


def judge(samples: Sequence[dict], *, runs: int) -> dict[str, dict[str, dict[str, object]]]:
    """Compare the first and the last quarter of the samples while runs end, for each role and what it holds."""
    runs = min(runs, samples[-1]["ended"])  # fewer where it was stopped
    steady = [each for each in samples if max(2, runs / 10) <= each["ended"] < runs]
    quarter = max(1, len(steady) // 4)
    if len(steady) < 4:
        raise SystemExit(f"{len(steady)} samples while runs ended: expected at least 4")
    first, last = steady[:quarter], steady[-quarter:]
    hours = (median(each["seconds"] for each in last) - median(each["seconds"] for each in first)) / 3600
    ended = median(each["ended"] for each in last) - median(each["ended"] for each in first)
    found: dict[str, dict[str, dict[str, object]]] = defaultdict(dict)
    for role in sorted({role for each in steady for role in each["roles"]}):
        for what, (amount, share) in LIMITS.items():
            before, after = (
                median(each["roles"].get(role, {}).get(what, 0.0) for each in part) for part in (first, last)
            )
            found[role][what] = {
                "first": before,
                "last": after,
                "an_hour": (after - before) / hours,
                "a_run": (after - before) / max(1, ended),
                "is_flat": after - before <= max(amount, share * before),
            }
    return found


def cpu_a_run(samples: Sequence[dict], *, runs: int) -> dict[str, tuple[float, float]]:
    """Return the CPU seconds a run costs each process that lives throughout, in the first and in the last third."""
    thirds = [[each for each in samples if part * runs / 3 < each["ended"] <= (part + 1) * runs / 3] for part in (0, 2)]
    found = {}
    for role in sorted({*LASTING} | {role for each in samples for role in each["roles"] if "Ray:" in role}):
        with contextlib.suppress(KeyError, IndexError, ZeroDivisionError):
            found[role] = tuple(
                (part[-1]["roles"][role]["cpu_seconds"] - part[0]["roles"][role]["cpu_seconds"])
                / (part[-1]["ended"] - part[0]["ended"])
                for part in thirds
            )
    return found


def table(found: dict[str, dict[str, dict[str, object]]]) -> str:
    """Return the verdict as lines."""
    lines = [f"{'':24}{'':10}{'first':>9}{'last':>9}{'an hour':>9}{'a run':>9}"]
    for role, by in found.items():
        for what, numbers in by.items():
            values = "".join(f"{numbers[key]:9.{3 if key == 'a_run' else 1}f}" for key in list(numbers)[:4])
            lines.append(f"{role:24}{what:10}{values}  {'flat' if numbers['is_flat'] else 'GROWS'}")
    return "\n".join(lines)


def draw(samples: Sequence[dict], waited: Sequence[float], path: Path) -> None:
    """Draw memory, handles, the launcher's own counts and the waits over the runs that have ended."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 8), layout="constrained")
    memory, handles, within, between = figure.subplots(2, 2).flat
    ended = [each["ended"] for each in samples]
    lasting = [role for role in samples[-1]["roles"] | samples[0]["roles"] if role in LASTING or "Ray:" in role]
    for role in sorted(lasting):
        for axes, what in ((memory, "uss_mib"), (handles, "handles")):
            values = [each["roles"].get(role, {}).get(what, 0.0) for each in samples]
            axes.plot(ended, values, label=role, linewidth=2.5 if role in JUDGED else 1)
    memory.set(ylabel="MiB of its own", ylim=(0, None))
    handles.set(ylabel="handles", ylim=(0, None))
    memory.legend(fontsize=7)
    within.plot(ended, [each["unsent"] for each in samples], label="rows not sent")
    within.plot(ended, [each["objects"] / 1000 for each in samples], label="thousand objects of the launcher")
    within.legend()
    between.plot(range(len(waited)), waited, ".")
    between.set(ylabel="s from the end of a run to the next begin", ylim=(0, None))
    for axes in (memory, handles, within, between):
        axes.set_xlabel("runs ended")
        axes.grid(alpha=0.3)
    figure.savefig(path)


def print_verdict(samples: Sequence[dict], waited: Sequence[float], *, runs: int, figure: Path) -> dict[str, object]:
    """Judge, print, draw; return all of it, with the judged roles that are not flat under ``growing``."""
    found, cpu, eighth = judge(samples, runs=runs), cpu_a_run(samples, runs=runs), max(1, len(waited) // 8)
    print(table(found))
    for role, (early, late) in cpu.items():
        print(f"{role}: {early:.2f} CPU seconds a run in the first third, {late:.2f} in the last")
    first, last = median(waited[:eighth]), median(waited[-eighth:])
    print(f"from the end of a run to the begin of the next: {first:.1f} s at first, {last:.1f} s at the end")
    draw(samples, waited, figure)
    growing = [role for role in JUDGED if not all(numbers["is_flat"] for numbers in found.get(role, {}).values())]
    print(f"not flat: {', '.join(growing)}" if growing else "flat")
    return {"waits": waited, "cpu_a_run": cpu, "verdict": found, "growing": growing}


def read_samples(folder: Path) -> list[dict]:
    """Return the samples that a soak has written."""
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    place = Path(sys.argv[1])
    before = json.loads((place / "soak.json").read_text())
    runs = json.loads((place / "settings.json").read_text())["runs"]
    print_verdict(read_samples(place), before["waits"], runs=runs, figure=place / "soak.png")
