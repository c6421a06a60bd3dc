"""A long ablation of sleeping runs: does memory stay flat, is every handle closed, does MLflow have every row?

    python tests/benchmarks/soak.py --runs 400 --hours 1.6 --server    # PostgreSQL and MLflow's server; else sqlite

Everything but the training is real: the launcher, Ray Tune and Train, a process for each run, rows and checkpoints
through the driver, MLflow. A run sleeps, commits a row every few seconds and every fourth a checkpoint, and leaves
an evaluation and a merged checkpoint of a few bytes.

Another process than the launcher looks at all of them every so many seconds and appends to ``samples.jsonl``. At the
end there are ``soak.json``, ``soak.png`` and a table of the first and the last quarter of the time in which runs end
(``soak_verdict.py``, which says what is flat). The exit code is 1 where the launcher or the tracking server is not
flat, a row is missing or doubled in MLflow, or a process or temporary file is left.
"""

import argparse
import contextlib
import gc
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.simulate_cluster import waits_between
from tests.benchmarks.soak_verdict import print_verdict, read_samples

NAME = "soak"
GROUPS = 8
CHECKPOINT_ROWS = 4
ROW_SECONDS = 3.0
START_SECONDS = 25.0  # of a slot, before the run in it begins: its processes import torch and Ray
IMAGES = 40
MIB = 2**20
# What a word of a process's command line or title says that it is; the first that is found counts.
ROLES = {
    "gcs_server": "Ray: gcs",
    "raylet/raylet": "Ray: raylet",
    "DashboardAgent": "Ray: dashboard agent",
    "dashboard_agent": "Ray: dashboard agent",
    "RuntimeEnvAgent": "Ray: environment agent",
    "runtime_env": "Ray: environment agent",
    "dashboard": "Ray: dashboard",
    "log_monitor": "Ray: log monitor",
    "monitor.py": "Ray: autoscaler",
    "ray::IDLE": "idle workers",
    "RayTrainWorker": "workers of runs",
    "ray::ImplicitFunc": "drivers of runs",
    "ray::": "other actors of Ray",
}


# --- a run -----------------------------------------------------------------------------------------------------------


def sleeper(num_rows: int, pause_seconds: float):
    """Return a stand-in for the trainer core that sleeps and commits what a run commits."""

    def sleep(config, *, reporter, print_line):
        from coordexp.metrics import BOX_KINDS
        from coordexp.runs.folder import ExperimentFolder, RunFolder
        from coordexp.runs.reporter import Row

        run, draw, began = RunFolder.of(config), random.Random(RunFolder.of(config).name), time.time()
        names = ("learning_rate", "grad_norm", "num_images", "train_total_loss", "train_text_loss", "train_coord_loss")
        for step in range(1, num_rows + 1):
            time.sleep(pause_seconds * draw.uniform(0.5, 1.5))
            row = Row(step=step, time=time.time(), metrics={name: draw.random() for name in names})
            checkpoint = None
            if step % CHECKPOINT_ROWS == 0:
                checkpoint = Path(tempfile.mkdtemp(prefix="checkpoint-"))
                (checkpoint / "weights").write_bytes(b"0" * 100_000)
            reporter.observe(row)
            reporter.commit([row], step=step, checkpoint=checkpoint)
            print_line(f"{run.name}  step {step}/{num_rows}")
        truth = json.loads((ExperimentFolder.of(config).data / "instances_val.json").read_text())
        final = run.evaluation("final").decoding("constrained")
        final.path.mkdir(parents=True, exist_ok=True)
        for kind in BOX_KINDS:
            found = [
                {key: entry[key] for key in ("image_id", "category_id", "bbox")} | {"score": draw.random()}
                for entry in truth["annotations"]
                if draw.random() < 0.7
            ]
            final.detections(kind).write_text(json.dumps(found))
        run.merged.mkdir(exist_ok=True)
        (run.merged / "model.safetensors").write_bytes(b"0" * 1000)
        metrics = {f"constrained/{kind}/AP": draw.random() for kind in BOX_KINDS} | {"final/steps": float(num_rows)}
        reporter.commit([Row(step=num_rows, time=time.time(), metrics=metrics)], step=num_rows, checkpoint=None)
        (run.path / "times.json").write_text(json.dumps([began, time.time()]))

    return sleep


# --- the launcher's process ------------------------------------------------------------------------------------------


class Lines(io.TextIOBase):
    """Takes what the launcher prints; with ``plant`` it keeps something of every run that ends, as a mistake would."""

    def __init__(self, path: Path, plant: Sequence[str]) -> None:
        self._file = path.open("a", buffering=1)
        self._plant = plant
        self._kept: list[object] = []
        self.num_ended = 0

    def write(self, text: str) -> int:
        if "  finished at step " in text:
            self.num_ended += 1
            if "memory" in self._plant:
                self._kept.append(os.urandom(20 * MIB))
            if "handles" in self._plant:
                self._kept.extend(Path(__file__).open() for _ in range(10))  # noqa: SIM115
        return self._file.write(text)


def launch(folder: Path) -> int:
    """Do the ablation in this process, which a thread looks at from within."""
    from rich.console import Console

    from coordexp.ablation.run import run_ablation
    from coordexp.config.schema import ExperimentConfig

    settings = json.loads((folder / "settings.json").read_text())
    config = ExperimentConfig.model_validate(settings["config"])
    lines = Lines(folder / "launcher.log", settings["plant"])
    look = threading.Thread(
        target=look_within, args=(folder / "within.json", lines, settings["every"]), name="soak", daemon=True
    )
    look.start()
    ending = run_ablation(
        config,
        console=Console(file=lines, width=160),
        function=sleeper(settings["rows"], settings["pause"]),
    )
    for sentence in (ending.sentence, *ending.missing):
        lines.write(f"{sentence}\n")
    return ending.code


def look_within(path: Path, lines: Lines, every: float) -> None:
    """Note what only the launcher knows: runs that have ended, rows that are not sent, how many objects there are."""
    from coordexp.tracking.spool import RowSync

    sync: RowSync | None = None
    while True:
        objects = gc.get_objects()
        sync = sync or next((each for each in objects if type(each) is RowSync), None)
        found = {"ended": lines.num_ended, "objects": len(objects), "unsent": 0}
        found["types"] = Counter(type(each).__name__ for each in objects).most_common(60)
        del objects
        if sync is not None:
            left = (sync.unsent(run_id, file) for run_id, file in list(sync._sent))
            found["unsent"] = sum(each.rows for each in left if each is not None)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.replace(path)
        time.sleep(every)


# --- the process that looks ------------------------------------------------------------------------------------------


def role_of(process: psutil.Process) -> str:
    """Return what a process of Ray is."""
    text = " ".join(process.cmdline())
    return next((role for word, role in ROLES.items() if word in text), "other")


def sample(roots: dict[str, int]) -> dict[str, dict[str, float]]:
    """Return what the processes use that each root has started, added up by role.

    Args:
        roots: role and process id; the launcher's children have roles of their own, others count with their root.
    """
    roles: dict[str, Counter[str]] = defaultdict(Counter)
    for name, pid in roots.items():
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    memory, cpu = process.memory_full_info(), process.cpu_times()
                    role = name if process.pid == pid or name != "launcher" else role_of(process)
                    roles[role] += Counter(
                        processes=1,
                        rss_mib=memory.rss / MIB,
                        uss_mib=memory.uss / MIB,
                        handles=process.num_fds(),
                        threads=process.num_threads(),
                        cpu_seconds=cpu.user + cpu.system,
                    )
    return {role: dict(found) for role, found in roles.items()}


def watch(launcher: "subprocess.Popen[bytes]", roots: dict[str, int], options: argparse.Namespace) -> bool:
    """Append samples to ``samples.jsonl`` until the launcher ends; return whether it was stopped."""
    began, folder, every, is_stopped = time.time(), options.output, options.every, False
    with (folder / "samples.jsonl").open("a", buffering=1) as handle:
        while launcher.poll() is None:
            if not is_stopped and time.time() - began > 3600 * options.at_most:
                launcher.terminate()
                is_stopped = True
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(every)
            with contextlib.suppress(FileNotFoundError):
                within = json.loads((folder / "within.json").read_text())
                found = {"seconds": time.time() - began, **within, "roles": sample({"launcher": launcher.pid, **roots})}
                if "launcher" in found["roles"]:
                    handle.write(json.dumps(found) + "\n")
    return is_stopped


def settings_of(options: argparse.Namespace, scratch: Path, uri: str | None) -> dict[str, object]:
    """Return what the launcher reads: the experiment, and how long a run sleeps."""
    groups = min(GROUPS, options.runs)
    if options.runs % groups:
        raise SystemExit(f"--runs {options.runs}: expected a multiple of {GROUPS}, or less")
    seconds = max(2.0, 3600 * options.hours * options.at_once / options.runs - START_SECONDS)
    rows = max(CHECKPOINT_ROWS, round(seconds / ROW_SECONDS))
    config = {
        "experiment": {"name": NAME, "runs_dir": str(scratch / "runs")},
        "data": {"shapes": {"num_train": 4, "num_val": IMAGES}},
        "tracking": {"uri": uri},
        "cluster": {"cpus_per_worker": int(10_000 * psutil.cpu_count() / options.at_once) / 10_000},
        "ablation": {
            "groups": {f"G{number}": {"objective": {"lambda_coord": 1.0 + number}} for number in range(groups)},
            "seeds": list(range(options.runs // groups)),
        },
    }
    return {
        "config": config,
        "rows": rows,
        "pause": seconds / rows,
        "every": options.every,
        "plant": options.plant,
        "runs": options.runs,
        "at_once": options.at_once,
    }


@contextlib.contextmanager
def tracking(scratch: Path, *, is_server: bool) -> Iterator[tuple[str | None, dict[str, int]]]:
    """Yield a tracking URI and the processes behind it; None for the experiment's own sqlite."""
    if not is_server:
        yield None, {}
        return
    from tests.integration.mlflow_server_support import mlflow_server, postgres

    with postgres() as cluster, mlflow_server(cluster.database("soak"), scratch) as server:
        started = [process for process in psutil.Process().children() if process.pid != server.pid]
        yield server.url, {"MLflow's server": server.pid, "PostgreSQL": started[-1].pid}


def left_over(scratch: Path, *, seconds: float = 20) -> list[str]:
    """Return the processes and temporary files that are still there some seconds after the launcher's end."""
    deadline = time.monotonic() + seconds
    while (found := processes_of(scratch)) and time.monotonic() < deadline:
        time.sleep(0.5)
    others = [path for path in (scratch / "tmp").iterdir() if not path.name.startswith("torchinductor_")]
    of_sessions = [path for path in others if path.name.startswith("pymp-")]
    if len(of_sessions) == 1:  # the socket by which Ray's dashboard, killed at the end, starts its helpers
        others.remove(of_sessions[0])
    files = [*others, *(scratch / "runs").rglob(".scratch-*"), *(scratch / "runs").rglob("*.part")]
    return [f"process {name}" for name in found] + [f"file {path.relative_to(scratch)}" for path in files]


def processes_of(scratch: Path) -> list[str]:
    """Return the living processes whose environment has our folder for temporary files."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_ours = process.environ().get("TMPDIR") == str(scratch / "tmp")
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())[:60]}")
    return found


def check_rows(settings: dict[str, object], uri: str | None, *, is_stopped: bool = False) -> tuple[int, list[str]]:
    """Compare each run's rows on disk with MLflow; return the number of points and what is wrong.

    Args:
        settings: of the launcher.
        uri: of the tracking server; None for the experiment's own sqlite.
        is_stopped: not every run is expected to be finished: those that had begun are killed, others not there.
    """
    from coordexp.config.schema import ExperimentConfig
    from coordexp.runs.plan import plan_runs
    from coordexp.runs.reporter import read_rows
    from coordexp.tracking.connection import connect
    from coordexp.tracking.payload import row_points
    from coordexp.tracking.publish import tracking_uri

    config = ExperimentConfig.model_validate(settings["config"])
    client = connect(uri or tracking_uri(config))
    experiment = client.get_experiment_by_name(NAME).experiment_id
    stored, token = [], None
    while token != "":
        page = client.search_runs([experiment], max_results=1000, page_token=token)
        stored, token = [*stored, *page], page.token or ""
    by_name: dict[str, list] = defaultdict(list)
    for run in stored:
        by_name[run.info.run_name].append(run)
    wrong, points = [], 0
    for plan in plan_runs(config):
        rows, is_finished = read_rows(plan.folder.metrics), plan.is_finished() or not is_stopped
        found = [run.info.status for run in by_name[plan.name]]
        has_begun = is_finished or plan.status() is not None
        expected = ["FINISHED" if is_finished else "KILLED"] if has_begun else []
        if found != expected or not has_begun:
            wrong += [f"{plan.name}: {found} in MLflow, expected {expected}"] if found != expected else []
            continue
        if is_finished and len(rows) != settings["rows"] + 1:
            wrong.append(f"{plan.name}: {len(rows)} rows on disk, {settings['rows'] + 1} were committed")
        made = [point for row in rows for point in row_points(row)]
        for name in sorted({point.name for point in made}):
            expected = sorted((point.step, point.value) for point in made if point.name == name)
            history = client.get_metric_history(by_name[plan.name][0].info.run_id, name)
            if sorted((point.step, point.value) for point in history) != expected:
                wrong.append(f"{plan.name}: {name} has {len(history)} points in MLflow, {len(expected)} on disk")
            points += len(expected)
    return points, wrong


def main() -> int:
    """Soak, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--hours", type=float, default=1.6, help="how long the runs take together")
    parser.add_argument("--at-most", type=float, default=100.0, help="hours after which what is not done is stopped")
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two samples")
    parser.add_argument("--server", action="store_true", help="PostgreSQL and MLflow's server instead of sqlite")
    parser.add_argument("--plant", choices=("memory", "handles"), nargs="+", default=[], help="leaks of the launcher")
    parser.add_argument("--keep", action="store_true", help="keep the runs; else they go with the temporary folder")
    parser.add_argument("--output", type=Path, default=Path("soak"), help="default: soak")
    parser.add_argument("--launch", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.launch:
        return launch(options.launch)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "samples.jsonl").unlink(missing_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="cx-soak-", dir="/tmp"))  # short: Ray puts sockets there
    try:
        return soak(options, scratch)
    finally:
        if options.keep:
            print(f"kept: {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)


def soak(options: argparse.Namespace, scratch: Path) -> int:
    """Launch, watch, check; return the exit code."""
    for name in ("tmp", "ray"):
        (scratch / name).mkdir()
    began = time.time()
    with tracking(scratch, is_server=options.server) as (uri, roots):
        settings = settings_of(options, scratch, uri)
        (options.output / "settings.json").write_text(json.dumps(settings, indent=1))
        for old in ("within.json", "launcher.log"):
            (options.output / old).unlink(missing_ok=True)
        environment = {**os.environ, "TMPDIR": str(scratch / "tmp"), "RAY_TMPDIR": str(scratch / "ray")}
        environment.pop("RAY_ADDRESS", None)
        command = [sys.executable, __file__, "--launch", str(options.output.absolute())]
        with (options.output / "errors.log").open("wb") as errors:
            launcher = subprocess.Popen(command, env=environment, stderr=errors)
            try:
                is_stopped = watch(launcher, roots, options)
            finally:
                if launcher.poll() is None:
                    launcher.terminate()
                    launcher.wait(60)
        seconds = time.time() - began
        left = left_over(scratch)
        points, wrong = check_rows(settings, uri, is_stopped=is_stopped)
    spans = [json.loads(path.read_text()) for path in (scratch / "runs" / NAME).glob("*/times.json")]
    print(
        f"{len(spans)} of {options.runs} runs, {settings['rows']} rows each, {options.at_once} at once, done in ",
        end="",
    )
    print(f"{seconds / 60:.1f} minutes{', then stopped' if is_stopped else ''}")
    print(f"MLflow: {points} points compared; {'all there once' if not wrong else wrong[:10]}")
    print(f"left: {left or 'nothing'}; the launcher's exit code: {launcher.returncode}")
    waited = waits_between(spans, options.at_once)
    found = {"seconds": seconds, "code": launcher.returncode, "points": points, "wrong": wrong, "left": left}
    found |= {"waits": waited}
    (options.output / "soak.json").write_text(json.dumps(found, indent=1))
    found |= print_verdict(read_samples(options.output), waited, runs=options.runs, figure=options.output / "soak.png")
    (options.output / "soak.json").write_text(json.dumps(found, indent=1))
    is_as_expected = launcher.returncode == (130 if is_stopped else 0)
    return 1 if found["growing"] or wrong or left or not is_as_expected else 0


if __name__ == "__main__":
    sys.exit(main())
