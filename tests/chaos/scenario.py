"""One scenario: a command, what breaks under it, the same command again until it ends well, and a record of it all."""

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from tests.chaos.faults import KINDS, Broken, Fault, Scene
from tests.chaos.judge import (
    Result,
    differences,
    final_weights,
    last_words,
    of_training,
    problem_of_words,
)
from tests.chaos.processes import is_alive, kill_tree, left_behind
from tests.chaos.world import World

TOO_LATE = "came too late"
COMMANDS = 4  # the first, and three more
MAX_SECONDS = 1200  # of a command; one that takes longer hangs


@dataclass
class Command:
    """How one command ended: exit code, seconds, and its last line."""

    code: int
    seconds: float
    said: str


@dataclass
class Record:
    """What came of a scenario.

    Attributes:
        number: of the scenario.
        is_real: with the real trainer.
        faults: in words: what, whom, when, for how long.
        commands: in order.
        problems: in sentences; nothing where it ended as it must.
    """

    number: int
    is_real: bool
    faults: list[str] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def came_too_late(self) -> bool:
        """Return whether nothing broke, since the command had ended before."""
        return all(fault.endswith(TOO_LATE) for fault in self.faults)

    def line(self) -> str:
        """Return one line of a terminal."""
        codes = ", ".join(f"{command.code} in {command.seconds:.0f} s" for command in self.commands)
        ending = "; ".join(self.problems) or "equal"
        return f"{self.number:3}  {' + '.join(self.faults)}  ->  {codes}  ->  {ending}"


def undisturbed(world: World, *, is_real: bool, logs: Path) -> tuple[Result, float]:
    """Return what the ablation comes to where nothing breaks, and how long it takes."""
    name = f"undisturbed_{'real' if is_real else 'small'}"
    world.ready()
    began = time.monotonic()
    job = world.begin(name, logs / f"{name}.log", is_real=is_real)
    code = job.wait(MAX_SECONDS)
    if code:
        raise RuntimeError(f"the undisturbed command ended with {code}: {logs / name}.log")
    seconds = time.monotonic() - began
    result = result_of(world, name)
    shutil.rmtree(world.disk / name)
    return result, seconds


def result_of(world: World, name: str) -> Result:
    """Return what an experiment has come to."""
    points = of_training(world.tracking.points(name), name)
    return Result(final_weights(world.disk / name), points, world.tracking.states(name))


def play(
    world: World, number: int, faults: Sequence[Fault], expected: Result, *, course: float, is_real: bool, logs: Path
) -> Record:
    """Let faults happen to a command, and give it again until it ends well.

    Args:
        world: where.
        number: of the scenario, for names.
        faults: what breaks.
        expected: what an undisturbed command comes to.
        course: seconds that it takes.
        is_real: with the real trainer.
        logs: folder for what the commands say.
    """
    record = Record(number, is_real)
    name = f"chaos_{number:02d}_{'real' if is_real else 'small'}_{time.time_ns() // 10**9}"
    is_equal = False
    for attempt in range(COMMANDS):
        world.ready()
        log = logs / f"{number:02d}-{attempt + 1}.log"
        began = time.monotonic()
        job = world.begin(name, log, is_real=is_real)
        happening: list[threading.Thread] = []
        if attempt == 0:
            scene = Scene(world, psutil.Process(job.pid), world.disk / name)
            happening = [_happens(fault, scene, began + fault.at * course, began, record) for fault in faults]
        try:
            code = job.wait(MAX_SECONDS)
        except subprocess.TimeoutExpired:
            record.problems.append(f"command {attempt + 1} has not ended after {MAX_SECONDS} s")
            kill_tree(job)
            code = job.wait()
        for thread in happening:
            thread.join()
        seconds, text = round(time.monotonic() - began), log.read_text(errors="replace")
        record.commands.append(Command(code, seconds, last_words(text)[:300]))
        left = left_behind(job.pid)
        if left:
            record.problems.append(f"left behind by command {attempt + 1}: {', '.join(sorted(set(left)))}")
        if code == 0:
            record.problems += (found := differences(expected, result_of(world, name)))
            is_equal = not found
            break
        if code > 0 and (problem := problem_of_words(text)):
            record.problems.append(f"command {attempt + 1}: {problem}")
        elif code not in (-9, *range(1, 256)):
            record.problems.append(f"command {attempt + 1} was ended by signal {-code}")
    if not is_equal and record.commands[-1].code:
        record.problems.append(f"not finished after {len(record.commands)} commands")
    shutil.rmtree(world.disk / name, ignore_errors=True)
    return record


def table(records: Sequence[Record]) -> str:
    """Return records as a table of Markdown."""
    rows = [
        "| no. | what broke | commands: exit code, seconds | last words of the first | in the end |",
        "|---|---|---|---|---|",
    ]
    for record in records:
        codes = ", ".join(f"{command.code} ({command.seconds:.0f})" for command in record.commands)
        first = record.commands[0]
        said = first.said.replace("|", "\\|") if first.code else ""
        trainer = " (real trainer)" if record.is_real else ""
        ending = "; ".join(record.problems).replace("|", "\\|") or "equal"
        rows.append(
            f"| {record.number}{trainer} | {'<br>'.join(record.faults)} | {codes} | {said[:160]} | {ending[:300]} |"
        )
    return "\n".join(rows) + "\n"


def _happens(fault: Fault, scene: Scene, when: float, began: float, record: Record) -> threading.Thread:
    thread = threading.Thread(target=_happen, args=(fault, scene, when, began, record), daemon=True)
    thread.start()
    return thread


def _happen(fault: Fault, scene: Scene, when: float, began: float, record: Record) -> None:
    """Break one thing when its time has come and it is there, and undo it later."""
    broken: Broken | None = None
    while broken is None and is_alive(scene.job):
        if time.monotonic() >= when:
            broken = KINDS[fault.kind](scene, fault)
        time.sleep(0.1)
    if broken is None:
        record.faults.append(f"{fault.kind}: {TOO_LATE}")
        return
    at = time.monotonic() - began
    lasting = f" for {fault.seconds:.0f} s" if broken.undo else ""
    record.faults.append(f"{fault.kind} ({broken.victim}) at {at:.0f} s{lasting}")
    if broken.undo:
        time.sleep(fault.seconds)
        broken.undo()


def json_of(record: Record) -> str:
    """Return a record as a line of a file."""
    return json.dumps(asdict(record))


def record_of(line: str) -> Record:
    """Return the record of such a line."""
    values = json.loads(line)
    return Record(**values | {"commands": [Command(**command) for command in values["commands"]]})
