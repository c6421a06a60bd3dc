"""Which sources decide the numbers of a run, as one hash a file.

They are those that a process imports which trains, so the rooms around it are left out by themselves: ablation,
sweep and cluster decide which runs there are and start them, tracking, statistics, report and doctor send or read what
they left, the command line asks for it all. They hand over a configuration, which is compared key by key. What prepares
the data and the base checkpoint is left out too, since the bytes it makes are hashed.

Of the loss terms only those count that a run computes; a metric of detections that one run lacks changes no number
of the others, see :func:`is_metric`. A hash is of the syntax tree: comments, docstrings, the
texts that documents are made of and the layout of a file change nothing.
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
# Imported by every run, without influence on its numbers: errors and findings are sentences, a number is what it is
# under any name, and a shipped file wherever it lies. How a configuration is read and compared changes none either,
# since its values are compared key by key; what its schema computes of them (steps, weights) does. The package's own
# __init__.py only re-exports.
# Where temporary files lie, how many CPUs a container has, how far a stage is, and what is logged, decide no digit: the
# threads that do are a key.
_WITHOUT_INFLUENCE = (
    "__init__.py", "cpus.py", "errors.py", "findings.py", "limits.py", "logs.py", "metrics.py", "shipped.py",
    "stages.py", "temporary.py", "terminal.py",
)  # fmt: skip


@functools.cache
def code_of_run(extra_terms: tuple[str, ...] = (), *, package: Path = PACKAGE) -> Mapping[str, str]:
    """Return the hash of each source that can change a number of a run, by its path; looked up once a process.

    The run computes ``extra_terms`` beside the loss terms of every run.
    """
    # Terms and metrics are found by their files; every metric there is is computed in every run.
    waiting = [package / _START, *(package / _TERMS / f"{name}.py" for name in extra_terms)]
    waiting += sorted((package / _METRICS).glob("*.py"))
    seen: set[Path] = set()
    hashes: dict[str, str] = {}
    while waiting:
        path = waiting.pop()
        inside = path.relative_to(package)
        is_read_only = inside.parts[0] == "config" and inside.parts[1] != "schema"
        if path in seen or inside.parts[0] in _WITHOUT_INFLUENCE or is_read_only:
            continue
        seen.add(path)
        found_hash, imports = _parsed(path.read_text(encoding="utf-8"))
        if found_hash is not None:
            hashes[path.relative_to(package.parent).as_posix()] = found_hash
        waiting += [found for name in imports for found in _files(name, package)]
        waiting += [found for above in inside.parents if (found := package / above / "__init__.py").is_file()]
    return dict(sorted(hashes.items()))


def is_metric(path: str) -> bool:
    """Say whether a source, by its path in :func:`code_of_run`, computes a metric of detections."""
    return path.startswith(f"{PACKAGE.name}/{_METRICS.as_posix()}/")


@functools.cache
def _parsed(text: str) -> tuple[str | None, list[str]]:
    """Return the hash of what a file does, None for nothing, and the modules or names that it imports."""
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
    return sha256_of_text(ast.dump(bare))[:16] if bare.body else None, imports


class _WithoutProse(ast.NodeTransformer):
    """Takes away docstrings, the ``description`` of a field and the ``formula`` of a loss term."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:  # the name is the library's
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
    """Return the file of a module of the package, if it is one."""
    name, *inner = module.split(".")
    path = package.joinpath(*inner, "__init__.py")
    candidates = (path, path.parent.with_suffix(".py")) if name == package.name and inner else ()
    return [found for found in candidates if found.is_file()]
