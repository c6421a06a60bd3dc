"""Plants faults in the rooms that numbers come from, one at a time; the tests must turn red.

python -m tests.mutation.run                 # 60 faults; the room's own tests, then all fast ones: hours on two cores
python -m tests.mutation.run --seed 7 --faults 10 --own
python -m tests.mutation.run --only 12       # one fault again; it prints the changed line

Each fault is planted in a copy beside the checkout. Those that no test finds are printed at the end; exit code 1 where
more than three of 60 are left.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("losses", "coord_tokens", "detection", "statistics", "data", "evaluate", "runs", "train")
_SHARE_FOUND = 57 / 60
_SECONDS = 1800
_FAST: tuple[str, ...] = ("-m", "not slow and not gpu", "-q", "-x", "-p", "no:cacheprovider")

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Add,
}


@dataclass(frozen=True)
class Fault:
    """One place of one file, and what stands there instead."""

    path: Path
    line: int
    kind: str
    before: str
    after: str
    start: int
    end: int

    def planted_in(self, source: bytes) -> bytes:
        """Return the file with the fault."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.before} -> {self.after}"


def faults_of(path: Path) -> Iterator[Fault]:
    """Yield every fault that can be planted in a file: neither in messages, nor in annotations."""
    source = (ROOT / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(source)
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert)
        or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        for inner in ast.walk(node)
    } | {id(inner) for node in ast.walk(tree) for note in _annotations(node) for inner in ast.walk(note)}
    for node in ast.walk(tree):
        if id(node) in skipped or not isinstance(node, ast.expr | ast.stmt):
            continue
        for kind, changed in _changes(node):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
            before = " ".join(source[start:end].decode().split())
            yield Fault(path, node.lineno, kind, before, changed, start, end)


def _annotations(node: ast.AST) -> Iterator[ast.AST]:
    for name in ("annotation", "returns"):
        note = getattr(node, name, None)
        if isinstance(note, ast.AST):
            yield note


def _changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
            other = ast.Compare(node.left, [_COMPARISONS[type(operator)]()], node.comparators)
            yield "comparison", f"({ast.unparse(other)})"
        case ast.BinOp(op=operator) if type(operator) in _OPERATORS and not isinstance(
            node.left, ast.Constant | ast.List
        ):
            yield "operator", f"({ast.unparse(ast.BinOp(node.left, _OPERATORS[type(operator)](), node.right))})"
        case ast.BoolOp(op=ast.And()):
            yield "and, or", f"({ast.unparse(ast.BoolOp(ast.Or(), node.values))})"
        case ast.BoolOp(op=ast.Or()):
            yield "and, or", f"({ast.unparse(ast.BoolOp(ast.And(), node.values))})"
        case ast.UnaryOp(op=ast.Not()):
            yield "not", ast.unparse(node.operand)
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            yield "off by one", str(number + 1)
        case ast.Call(args=[ast.Name() as first, ast.Name() as second, *rest]):
            swapped = ast.Call(node.func, [second, first, *rest], node.keywords)
            yield "swapped arguments", ast.unparse(swapped)
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "dropped line", "pass"
        case _:
            pass


def chosen_faults(seed: int, number: int) -> list[Fault]:
    """Return faults drawn by a seed, as many of each room as of any other, one a file while files last."""
    draw = random.Random(seed)
    faults: list[Fault] = []
    for place in range(number):
        room = ROOMS[place % len(ROOMS)]
        taken = {fault.path for fault in faults}
        files = [path.relative_to(ROOT) for path in sorted((ROOT / "coordexp" / room).rglob("*.py"))]
        pools = {path: pool for path in files if (pool := list(faults_of(path)))}
        left = [path for path in pools if path not in taken] or list(pools)
        path = draw.choices(left, weights=[len(pools[path]) for path in left])[0]
        kind = draw.choice(sorted({fault.kind for fault in pools[path]}))
        faults.append(draw.choice([fault for fault in pools[path] if fault.kind == kind]))
    return faults


def is_found(fault: Fault, copy: Path, *, own: bool) -> bool:
    """Return whether a test turns red, those of the fault's room first."""
    target = copy / fault.path
    good = target.read_bytes()
    target.write_bytes(fault.planted_in(good))
    room = f"tests/unit/{fault.path.parts[1]}"
    rounds = [(*_FAST, room)]
    if not own:
        rounds.append((*_FAST, "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--ignore", room))
    try:
        return any(_is_red(copy, arguments) for arguments in rounds)
    finally:
        target.write_bytes(good)


def _is_red(copy: Path, arguments: Sequence[str]) -> bool:
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", *arguments]
    try:
        ended = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return ended.returncode != 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant and test; 0 where enough faults are found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the faults to plant (all)")
    parser.add_argument("--own", action="store_true", help="run the room's own tests alone")
    options = parser.parse_args(arguments)
    faults = chosen_faults(options.seed, options.faults)
    numbers = range(len(faults)) if options.only is None else options.only
    left: list[str] = []
    with tempfile.TemporaryDirectory(prefix=".mutation-", dir=ROOT.parent) as scratch:
        copy = Path(scratch) / "checkout"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", "runs", "__pycache__"))
        if not own_tests_are_green(copy):
            sys.exit("the tests fail without any fault; mend them first")
        for number in numbers:
            found = is_found(faults[number], copy, own=options.own)
            print(f"{number:3} {'found' if found else 'LEFT '} {faults[number]}", flush=True)
            left += [] if found else [f"{number} {faults[number]}"]
    print(f"{len(numbers) - len(left)} of {len(numbers)} found", *left, sep="\n")
    return int(len(left) > (1 - _SHARE_FOUND) * len(numbers))


def own_tests_are_green(copy: Path) -> bool:
    """Return whether the tests of the rooms pass in the copy as it is: else every fault would be found."""
    return not _is_red(copy, (*_FAST, "-n", "2", *(f"tests/unit/{room}" for room in ROOMS)))


if __name__ == "__main__":
    sys.exit(main())
