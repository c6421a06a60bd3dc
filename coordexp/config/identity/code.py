"""Which sources decide the numbers of a run, as one hash a file.

They are the sources that a training process imports. So the rooms around it are left out by themselves: ablation, sweep
and cluster decide which runs there are and start them; tracking, statistics, report and doctor send or read what runs
have left; the command line asks for all of it. These rooms hand over a configuration, which is compared key by key.
What prepares the data and the base checkpoint is left out too, since the bytes it makes are hashed.

Of the loss terms, only those count that a run computes. A metric of detections that one run lacks changes no number of
the others (:func:`is_metric`). A hash is of the syntax tree: comments, docstrings, the texts that documents are made of
and the layout of a file change nothing.
"""

import ast
import functools
from collections.abc import Mapping
from pathlib import Path

from coordexp.files import sha256_of_text

PACKAGE = Path(__file__).parents[2]
_START = Path("train", "run.py")
_TERMS = Path("losses", "terms")
_METRICS = Path("detection", "metrics")
# Every run imports these, but they decide no digit of its numbers:
# - errors and findings are sentences, a number is what it is under any name, a shipped file wherever it lies;
# - how a configuration is read and compared changes nothing, since its values are compared key by key. What its schema
#   computes of them (steps, weights) does;
# - the package's own __init__.py only re-exports;
# - where temporary files lie, how many CPUs a container has, how far a stage is and what is logged. (The number of
#   threads does decide digits; it is a key.)
_WITHOUT_INFLUENCE = (
    "__init__.py", "cpus.py", "errors.py", "findings.py", "limits.py", "logs.py", "metrics.py", "shipped.py",
    "stages.py", "temporary.py", "terminal.py",
)  # fmt: skip


@functools.cache
def code_of_run(extra_terms: tuple[str, ...] = (), *, package: Path = PACKAGE) -> Mapping[str, str]:
    """Return the hash of each source that can change a number of a run, by its path; looked up once a process.

    Args:
        extra_terms: names of the loss terms that the run computes beside those of every run.
        package: the folder of the package.
    """
    # Terms and metrics are found by their files, not by imports. A run computes every metric there is.
    waiting = [package / _START, *(package / _TERMS / f"{name}.py" for name in extra_terms)]
    waiting += sorted((package / _METRICS).glob("*.py"))
    seen: set[Path] = set()
    hashes: dict[str, str] = {}
    while waiting:
        path = waiting.pop()
        path_in_package = path.relative_to(package)
        room = path_in_package.parts[0]
        only_reads_config = room == "config" and path_in_package.parts[1] != "schema"
        if path in seen or room in _WITHOUT_INFLUENCE or only_reads_config:
            continue
        seen.add(path)
        source_hash, imports = _parsed(path.read_text(encoding="utf-8"))
        if source_hash is not None:
            hashes[path.relative_to(package.parent).as_posix()] = source_hash
        for name in imports:
            waiting += _files(name, package)
        # Importing a module runs the __init__.py of each folder above it.
        init_files = [package / folder / "__init__.py" for folder in path_in_package.parents]
        waiting += [init_file for init_file in init_files if init_file.is_file()]
    return dict(sorted(hashes.items()))


def is_metric(path: str) -> bool:
    """Say whether a source, by its path in :func:`code_of_run`, computes a metric of detections."""
    return path.startswith(f"{PACKAGE.name}/{_METRICS.as_posix()}/")


@functools.cache
def _parsed(text: str) -> tuple[str | None, list[str]]:
    """Return the hash of what a file does, None if it does nothing, and the modules or names that it imports."""
    tree = ast.parse(text)
    imports: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, "imports name the whole module"
            # Of "from a import b" both a and a.b may be files.
            imports += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    bare = _WithoutProse().visit(tree)
    source_hash = sha256_of_text(ast.dump(bare))[:16] if bare.body else None
    return source_hash, imports


class _WithoutProse(ast.NodeTransformer):
    """Takes away docstrings, the ``description`` of a field and the ``formula`` of a loss term."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:  # The name is the library's.
        self.generic_visit(node)
        return None if _is_text(node.value) else node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign | None:
        self.generic_visit(node)
        is_formula = isinstance(node.targets[0], ast.Name) and node.targets[0].id == "formula"
        return None if is_formula and _is_text(node.value) else node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        node.keywords = [keyword for keyword in node.keywords if keyword.arg != "description"]
        return node


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _files(module: str, package: Path) -> list[Path]:
    """Return the file of a dotted name, if it is a module or a folder of the package."""
    name, *inner = module.split(".")
    if name != package.name or not inner:
        return []
    folder = package.joinpath(*inner)
    candidates = (folder / "__init__.py", folder.with_suffix(".py"))
    return [path for path in candidates if path.is_file()]
