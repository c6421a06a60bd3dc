"""What breaks: each fault is done to a world while a command runs in it, and undone after a while."""

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import psutil

from tests.chaos.processes import descendants, kill_tree, name_of, send
from tests.chaos.world import DISK_MIB, World

# How a process calls itself, by what it is for us; a driver's name is cut by Ray.
VICTIMS = {
    "worker": "ray::RayTrainWo",
    "driver": "ray::ImplicitFu",
    "GCS": "gcs_server",
    "raylet": "raylet/raylet",
}
_AT = (0.05, 0.9)
_SECONDS = {"SIGSTOP": (20, 60)}
_ANY_SECONDS = (5, 40)
_SECOND_FAULT = 0.4
_T = TypeVar("_T")


@dataclass(frozen=True)
class Fault:
    """One thing that breaks.

    Attributes:
        kind: a name of :data:`KINDS`.
        at: when, as a share of what an undisturbed command takes.
        seconds: after which it is undone, where it can be.
        pick: which victim of several, from 0 to 1.
    """

    kind: str
    at: float
    seconds: float
    pick: float


@dataclass(frozen=True)
class Scene:
    """A command that runs.

    Attributes:
        world: where it runs.
        job: its process.
        folder: of its experiment.
    """

    world: World
    job: psutil.Process
    folder: Path


@dataclass(frozen=True)
class Broken:
    """What a fault has done.

    Attributes:
        victim: in words.
        undo: mends it; None where nothing is to be mended, or a person does before the next command.
    """

    victim: str
    undo: Callable[[], None] | None = None


# Breaks something; None where there is nothing to break yet.
Break = Callable[[Scene, Fault], Broken | None]


def draw(seed: int, number: int) -> tuple[Fault, ...]:
    """Return one or two faults at once, always the same for a seed and a number; every kind comes in turn."""
    kinds = sorted(KINDS)
    random.Random(f"chaos/{seed}").shuffle(kinds)
    chance = random.Random(f"chaos/{seed}/{number}")
    first = _drawn(kinds[number % len(kinds)], chance)
    if chance.random() >= _SECOND_FAULT:
        return (first,)
    return first, replace(_drawn(chance.choice(kinds), chance), at=first.at)


def _drawn(kind: str, chance: random.Random) -> Fault:
    between = _SECONDS.get(kind.split()[0], _ANY_SECONDS)
    return Fault(
        kind, at=round(chance.uniform(*_AT), 3), seconds=round(chance.uniform(*between)), pick=round(chance.random(), 3)
    )


def victims(scene: Scene, name: str) -> list[psutil.Process]:
    """Return the processes that a name means, oldest first."""
    if name == "job":
        return [scene.job]
    return sorted(
        (process for process in descendants() if VICTIMS[name] in name_of(process).split(" ")[0]),
        key=lambda process: process.pid,
    )


def _picked(found: list[_T], fault: Fault) -> _T | None:
    return found[int(fault.pick * len(found))] if found else None


def _signal(number: signal.Signals, name: str) -> Break:
    def break_it(scene: Scene, fault: Fault) -> Broken | None:
        victim = _picked(victims(scene, name), fault)
        if victim is None:
            return None
        where = f" of {_node_of(scene.world, victim)}" if name == "raylet" else ""
        send([victim], number)
        if number == signal.SIGSTOP:
            return Broken(f"{name}{where}", lambda: send([victim], signal.SIGCONT))
        return Broken(f"{name}{where}", scene.world.cluster.start if name == "raylet" else None)

    return break_it


def _node_of(world: World, process: psutil.Process) -> str:
    head = world.cluster.head
    return "the head" if head is not None and process.ppid() == head.pid else "a node"


def _lose_node(scene: Scene, fault: Fault) -> Broken | None:
    node = _picked(scene.world.cluster.members, fault)
    if node is None:
        return None
    kill_tree(node)
    return Broken("a node", scene.world.cluster.start)


def _lose_head(scene: Scene, fault: Fault) -> Broken:
    del fault
    head = scene.world.cluster.head
    assert head is not None
    kill_tree(head)
    return Broken("the head", scene.world.cluster.start)


def _mlflow_down(scene: Scene, fault: Fault) -> Broken:
    del fault
    scene.world.tracking.kill_server()
    return Broken("MLflow", scene.world.tracking.start_server)


def _postgres_down(scene: Scene, fault: Fault) -> Broken:
    del fault
    scene.world.tracking.kill_postgres()
    return Broken("PostgreSQL", scene.world.tracking.start_postgres)


def _fill_disk(scene: Scene, fault: Fault) -> Broken:
    disk = scene.world.disk

    def resize(size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)

    resize(str(shutil.disk_usage(disk).used + int(fault.pick * 2**21)))  # less than a checkpoint is left, or nothing
    return Broken("the disk of the runs", lambda: resize(f"{DISK_MIB}m"))


def _read_only(scene: Scene, fault: Fault) -> Broken | None:
    run = _picked(_runs(scene), fault)
    if run is None:
        return None
    subprocess.run(["mount", "--bind", str(run), str(run)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(run)], check=True)
    return Broken(f"the folder of {run.name}", lambda: subprocess.run(["umount", str(run)], check=True) and None)


def _cut(pattern: str, *, kills: bool) -> Break:
    def break_it(scene: Scene, fault: Fault) -> Broken | None:
        found = sorted(scene.folder.glob(pattern), key=lambda path: path.stat().st_mtime)
        path = _picked(found[-3:], fault)
        if path is None:
            return None
        if kills:
            send(victims(scene, "worker"), signal.SIGKILL)
        file = path if path.is_file() else path.parent
        os.truncate(file, file.stat().st_size // 2)
        return Broken(str(file.relative_to(scene.folder)))

    return break_it


def _set_clock_back(scene: Scene, fault: Fault) -> Broken:
    del fault
    scene.world.clock.write_text("-3600")
    return Broken("the clock of all nodes")


def _runs(scene: Scene) -> list[Path]:
    return sorted(path.parent for path in scene.folder.glob("*/config.yaml"))


_CHECKPOINT = "*/checkpoints/step_*/*.[ps]*t*"  # state.pt of the small trainer, weights and optimizer of the real one
_ROWS = "*/metrics.jsonl"

KINDS: Mapping[str, Break] = {
    f"{number.name} {name}": _signal(number, name)
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
    for name in ("worker", "driver", "job", "GCS", "raylet")
} | {
    "a node lost and replaced": _lose_node,
    "the head lost and replaced": _lose_head,
    "MLflow down and up": _mlflow_down,
    "PostgreSQL down and up": _postgres_down,
    "disk full and freed": _fill_disk,
    "a run folder read-only and back": _read_only,
    "a checkpoint cut, workers killed": _cut(_CHECKPOINT, kills=True),
    "a checkpoint cut": _cut(_CHECKPOINT, kills=False),
    "a row file cut, workers killed": _cut(_ROWS, kills=True),
    "a row file cut": _cut(_ROWS, kills=False),
    "clock set back an hour": _set_clock_back,
}
